-- Discards the file that is being written.
--
-- uses _files.lua
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 trash
-- ARGV  1 fence of the publisher's lease
-- Returns the trash: its members, at most 100; empty if another publisher has begun
local state, consumers, trash = KEYS[1], KEYS[2], KEYS[3]
local fence = ARGV[1]

redis.call('HDEL', state, '') -- a full server refuses no write after this one
if not is_publisher(consumers, fence) then
  return {}
end
discard_written(state, trash)
return with_trash({}, trash)
