-- Declares that no further file will be announced. When all files are freed, closes the channel: deletes it as soon
-- as all consumers have noticed the end.
--
-- uses _files.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 fence of the publisher's lease
-- Returns {'stale'}, {'closed'}, or {'wait', entry, member…}: the newest entry of the stream `space`, and members
-- of the trash
local channel = channel_at(KEYS)
local fence = ARGV[1]
local CLOSED_TTL = 86400000 -- ms for which a closed channel is kept for consumers that have not noticed the end

if redis.call('EXISTS', channel.state) == 0 then -- a repeat after a lost reply
  return {'closed'}
end
allow_writes_when_full(channel.state)
if not is_publisher(channel, fence) then
  return {'stale'}
end
if not redis.call('HGET', channel.state, 'final') then
  redis.call('HSET', channel.state, 'final', 1)
  wake(channel, 'news')
end
if redis.call('ZCARD', channel.files) > 0 or redis.call('ZCARD', channel.trash) > 0 then
  return with_trash({'wait', redis.call('HGET', channel.state, 'space') or '0'}, channel)
end
if redis.call('ZCARD', channel.positions) == 0 and tonumber(redis.call('HGET', channel.state, 'places') or 0) == 0 then
  redis.call('DEL', channel.state, channel.consumers, channel.published, channel.news, channel.space)
else
  redis.call('HSET', channel.state, 'closed', 1)
  for _, key in pairs(channel) do
    redis.call('PEXPIRE', key, CLOSED_TTL)
  end
end
return {'closed'}
