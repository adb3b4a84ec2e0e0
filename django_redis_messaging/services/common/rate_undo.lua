-- Takes back what a call of rate_take has used, unless the rate was used again since.
--
-- KEYS  1 uses: LIST of ms and token of each of the latest uses
-- ARGV  1 token of the call
-- ARGV  2 number of times
-- Returns nothing
local uses, token, times = KEYS[1], ARGV[1], tonumber(ARGV[2])

if redis.call('LINDEX', uses, -1) == token then
  redis.call('LTRIM', uses, 0, -1 - 2 * times)
end
