-- Use an allowance of `limit` times a period once, if some is left.
-- KEYS  1 allowance: ms at which it is whole again (absent: it is whole)
-- ARGV  1 limit   2 period (ms)
-- Returns 0, or the ms until there is some again
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
-- a thousandth of a ms is kept, so that a step that is no whole number of ms adds up
local step = period / limit
local whole = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + step
-- a clock that was set back must not lock anybody out for longer than a period
if whole > now + 2 * period then whole = now + step end
local wait = whole - now - period
if wait > 0.001 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.3f', whole), 'PX', math.max(math.ceil(whole - now), 1))
return 0
