-- Discards the file that is being written.
--
-- uses _files.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 fence of the publisher's lease
-- Returns the trash: its members, at most 100; empty if another publisher has begun
local channel = channel_at(KEYS)
local fence = ARGV[1]

allow_writes_when_full(channel.state)
if not is_publisher(channel, fence) then
  return {}
end
discard_written(channel)
return with_trash({}, channel)
