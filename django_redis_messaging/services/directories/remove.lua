-- Removes a member from a directory.
--
-- uses _directory.lua
--
-- KEYS  1-3 directory (_directory.lua)
-- ARGV  1 id of the member
-- Returns how many of the keys records and indexed remain
local keys = directory_at(KEYS)
local id = ARGV[1]

local record = redis.call('HGET', keys.records, id)
if record then
  redis.call('ZREM', keys.entries, unpack(entries_of(record, id)))
  redis.call('HDEL', keys.records, id)
end
redis.call('ZREM', keys.indexed, id)
return redis.call('EXISTS', keys.records, keys.indexed)
