-- Uses up one of `limit` times per period, if any are left (generic cell rate algorithm).
--
-- uses _time.lua
--
-- KEYS  1 allowance: ms at which it is full again
-- ARGV  1 limit
-- ARGV  2 period: ms
-- Returns 0, or the ms to wait until the next use
local allowance = KEYS[1]
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = milliseconds()
local step = period / limit
local full_at = math.max(tonumber(redis.call('GET', allowance) or now), now) + step
-- If the clock was set back, nobody must be locked out for longer than a period.
if full_at > now + 2 * period then
  full_at = now + step
end
-- If a step is not a whole number of ms, the steps add up to slightly more than the period, by less than 1 ms.
local wait = full_at - now - period
if wait >= 1 then
  return math.ceil(wait)
end
redis.call('SET', allowance, string.format('%.3f', full_at), 'PX', math.max(math.ceil(full_at - now), 1))
return 0
