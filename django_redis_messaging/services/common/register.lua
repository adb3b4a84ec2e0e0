-- Registers a name until a moment, unless it is registered until a later one.
--
-- uses _time.lua
--
-- KEYS  1 registry: ZSET name → ms
-- ARGV  1 name
-- ARGV  2 moment: ms from now, or @ and a moment in ms; an earlier one than now counts as now
-- Returns 1
local registry = KEYS[1]
local name, moment = ARGV[1], ARGV[2]
local now = milliseconds()
local ms = tonumber(string.match(moment, '^@(%d+)$')) or now + moment
redis.call('ZADD', registry, 'GT', digits(math.max(ms, now)), name)
return 1
