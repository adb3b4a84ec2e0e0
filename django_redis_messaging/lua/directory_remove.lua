-- Removes a member from a directory.
--
-- uses _directory.lua
--
-- KEYS  1 entries
-- KEYS  2 records
-- KEYS  3 indexed
-- ARGV  1 id of the member
-- Returns the number of members left
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  redis.call('ZREM', KEYS[1], unpack(entries_of(record, ARGV[1])))
  redis.call('HDEL', KEYS[2], ARGV[1])
end
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.call('HLEN', KEYS[2])
