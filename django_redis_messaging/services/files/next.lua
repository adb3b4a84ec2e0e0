-- Returns the first file that a consumer has not acked.
--
-- uses _files.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 consumer
-- ARGV  2 fence of the consumer's lease
-- ARGV  3 run of the channel, as of the first reply; empty before
-- Returns {'stale'}; {'unknown', name…}: the channel has other consumers, these; {'end', run}, without a
-- run if the consumer has left; {'file', run, id, record}; or {'wait', run, entry, member…}: no file, the newest entry
-- of the stream `news`, members of the trash
local channel = channel_at(KEYS)
local consumer, fence, run = ARGV[1], ARGV[2], ARGV[3]

allow_writes_when_full(channel.state)
if redis.call('EXISTS', channel.state) == 0 then -- nothing was published yet
  return run == '' and {'wait', '', '0'} or {'end', ''}
end
local final, places, news, current = unpack(redis.call('HMGET', channel.state, 'final', 'places', 'news', 'run'))
if run ~= '' and run ~= current then -- the consumer has received all files of an earlier channel of this name
  return {'end', ''}
end
local position = redis.call('ZSCORE', channel.positions, consumer)
if not position then
  if final and redis.call('HEXISTS', channel.consumers, 's' .. consumer) == 1 then -- it has left
    return {'end', ''}
  elseif tonumber(places or 0) > 0 then
    position = '0'
    redis.call('ZADD', channel.positions, position, consumer)
    redis.call('HINCRBY', channel.state, 'places', -1)
    local ttl = redis.call('PTTL', channel.state)
    if ttl >= 0 then
      redis.call('PEXPIRE', channel.positions, ttl)
    end
  else
    local known = redis.call('ZRANGE', channel.positions, 0, -1)
    table.insert(known, 1, 'unknown')
    return known
  end
end
if is_stale(channel, consumer, fence) then
  return {'stale'}
end
redis.call('HSET', channel.consumers, 's' .. consumer, digits(milliseconds()))
local found = redis.call('ZRANGEBYSCORE', channel.files, '(' .. position, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if found[1] then
  return {'file', current, found[2], found[1]}
end
return final and {'end', current} or with_trash({'wait', current, news}, channel)
