-- Returns the first file that a consumer has not acked.
--
-- uses _files.lua
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- KEYS  5 trash
-- ARGV  1 consumer
-- ARGV  2 fence of the consumer's lease
-- ARGV  3 run of the channel, as of the first reply; empty before
-- Returns {'stale'}; {'unknown', name…}: the channel has other consumers, these; {'end', run}, without a
-- run if the consumer has left; {'file', run, id, record}; or {'wait', run, entry, member…}: no file, the newest entry of the stream `news`, members of the trash
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumer, fence, run = ARGV[1], ARGV[2], ARGV[3]

redis.call('HDEL', state, '') -- a full server refuses no write after this one
if redis.call('EXISTS', state) == 0 then -- nothing was published yet
  return run == '' and {'wait', '', '0'} or {'end', ''}
end
local final, places, news, current = unpack(redis.call('HMGET', state, 'final', 'places', 'news', 'run'))
if run ~= '' and run ~= current then -- the consumer has received all files of an earlier channel of this name
  return {'end', ''}
end
local position = redis.call('ZSCORE', positions, consumer)
if not position then
  if final and redis.call('HEXISTS', consumers, 's' .. consumer) == 1 then -- it has left
    return {'end', ''}
  elseif tonumber(places or 0) > 0 then
    position = '0'
    redis.call('ZADD', positions, position, consumer)
    redis.call('HINCRBY', state, 'places', -1)
    local ttl = redis.call('PTTL', state)
    if ttl >= 0 then
      redis.call('PEXPIRE', positions, ttl)
    end
  else
    local known = redis.call('ZRANGE', positions, 0, -1)
    table.insert(known, 1, 'unknown')
    return known
  end
end
if is_stale(consumers, consumer, fence) then
  return {'stale'}
end
redis.call('HSET', consumers, 's' .. consumer, digits(milliseconds()))
local found = redis.call('ZRANGEBYSCORE', files, '(' .. position, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if found[1] then
  return {'file', current, found[2], found[1]}
end
return final and {'end', current} or with_trash({'wait', current, news}, trash)
