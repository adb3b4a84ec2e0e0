-- Removes a member from a directory.
--
-- uses _directory.lua
--
-- KEYS  1 entries
-- KEYS  2 records
-- KEYS  3 indexed
-- ARGV  1 id of the member
-- Returns how many of the keys records and indexed remain
local entries, records, indexed, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local record = redis.call('HGET', records, id)
if record then
  redis.call('ZREM', entries, unpack(entries_of(record, id)))
  redis.call('HDEL', records, id)
end
redis.call('ZREM', indexed, id)
return redis.call('EXISTS', records, indexed)
