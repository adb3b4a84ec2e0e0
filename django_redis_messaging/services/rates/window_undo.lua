-- Takes back what a call of window_take has used, unless the key was used again since.
--
-- KEYS  1 uses
-- ARGV  1 request id of the call
-- ARGV  2 cost
-- Returns nothing
local uses, request, cost = KEYS[1], ARGV[1], tonumber(ARGV[2])

if redis.call('LINDEX', uses, -1) == request then
  redis.call('LTRIM', uses, 0, -1 - 2 * cost)
end
