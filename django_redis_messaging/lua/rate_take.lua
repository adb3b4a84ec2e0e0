-- Uses an allowance of `limit` times a period once, if some of it is left.
--
-- uses _clock.lua
--
-- KEYS  1 allowance: ms at which it is whole again
-- ARGV  1 limit
-- ARGV  2 period: ms
-- Returns 0, or the ms until there is some again
local now, period = clock(), tonumber(ARGV[2])
local step = period / tonumber(ARGV[1])
local whole = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + step
-- A clock that was set back must not lock anybody out for longer than a period.
if whole > now + 2 * period then
  whole = now + step
end
-- Steps that are no whole number of ms add up to a little more than the period, by less than one.
local wait = whole - now - period
if wait >= 1 then
  return math.ceil(wait)
end
redis.call('SET', KEYS[1], string.format('%.3f', whole), 'PX', math.max(math.ceil(whole - now), 1))
return 0
