-- Records that a consumer has processed a file, the first one that it has not acked; frees files that all consumers
-- have acked.
--
-- uses _files.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 consumer
-- ARGV  2 fence of the consumer's lease
-- ARGV  3 id of the file
-- Returns {'stale'}: another process has the lease, or the consumer was released; {'order'}: an earlier file has not
-- been acked; or, with members of the trash, {'ok', member…} or, for the last file of a final channel, {'end', member…}
local channel = channel_at(KEYS)
local consumer, fence, id = ARGV[1], ARGV[2], ARGV[3]

allow_writes_when_full(channel.state)
local position = redis.call('ZSCORE', channel.positions, consumer)
if not position or is_stale(channel, consumer, fence) then
  return {'stale'}
end
redis.call('HSET', channel.consumers, 's' .. consumer, digits(milliseconds()))
if tonumber(position) < tonumber(id) then
  if redis.call('ZCOUNT', channel.files, '(' .. position, '(' .. id) > 0 then
    return {'order'}
  end
  redis.call('ZADD', channel.positions, id, consumer)
end
free_acked(channel)
local is_last =
  redis.call('HGET', channel.state, 'final') and redis.call('ZCOUNT', channel.files, '(' .. id, '+inf') == 0
return with_trash({is_last and 'end' or 'ok'}, channel)
