-- Releases the share of a consumer: its files no longer wait for it.
--
-- uses _files.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 consumer; empty: a place that no consumer has taken
-- Returns {found, member…}: 1 if there was such a consumer or place, else 0; members of the trash
local channel = channel_at(KEYS)
local consumer = ARGV[1]

allow_writes_when_full(channel.state)
local found
if consumer ~= '' then
  found = remove_consumer(channel, consumer)
else
  found = tonumber(redis.call('HGET', channel.state, 'places') or 0) > 0
  if found then
    redis.call('HINCRBY', channel.state, 'places', -1)
  end
end
free_acked(channel)
return with_trash({found and 1 or 0}, channel)
