-- Deletes some periods of an aggregate, and after the last one the rest. All markers are deleted at the beginning, so
-- that no process continues to count a file that it has begun.
--
-- uses _aggregate.lua
--
-- KEYS  1-4 aggregate (_aggregate.lua)
-- KEYS  5… the counts of each period
-- ARGV  1… the names of these periods, up to 500
-- Returns the number of periods that remain
local aggregate = aggregate_at(KEYS)
redis.call('DEL', aggregate.markers, aggregate.malformed, unpack(KEYS, 5))
for _, name in ipairs(ARGV) do
  redis.call('ZREM', aggregate.periods, name)
  redis.call('ZREM', aggregate.expiries, 'p' .. name)
end
local remaining = redis.call('ZCARD', aggregate.periods)
if remaining == 0 then
  redis.call('DEL', aggregate.expiries)
end
return remaining
