-- Gives the space of files back whose blocks have been deleted, and moves further files that all consumers have
-- acked to the trash.
--
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1… members of the trash
-- Returns the trash: its members, at most 100
local channel = channel_at(KEYS)

local bytes, purged = 0, false
for at = 1, #ARGV do
  if redis.call('ZREM', channel.trash, ARGV[at]) == 1 then
    bytes, purged = bytes + tonumber(string.match(ARGV[at], ' (%d+)$')), true
  end
end
if purged then
  local used = tonumber(redis.call('HGET', channel.state, 'used') or 0) - bytes
  redis.call('HSET', channel.state, 'used', digits(used))
  wake(channel, 'space')
end
free_acked(channel)
expire_when_idle(channel)
return with_trash({}, channel)
