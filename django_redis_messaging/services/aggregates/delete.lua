-- Deletes some periods of an aggregate, and after the last one the rest. All markers are deleted at the beginning, so
-- that no process continues to count a file that it has begun.
--
-- KEYS  1 markers
-- KEYS  2 periods
-- KEYS  3 expiries
-- KEYS  4 malformed
-- KEYS  5… the counts of each period
-- ARGV  1… the names of these periods, up to 500
-- Returns the number of periods that remain
local markers, periods, expiries, malformed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
redis.call('DEL', markers, malformed, unpack(KEYS, 5))
for _, name in ipairs(ARGV) do
  redis.call('ZREM', periods, name)
  redis.call('ZREM', expiries, 'p' .. name)
end
local remaining = redis.call('ZCARD', periods)
if remaining == 0 then
  redis.call('DEL', expiries)
end
return remaining
