-- Announces a file whose blocks are complete to all consumers.
--
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 fence of the publisher's lease
-- ARGV  2 id of the file
-- ARGV  3 the file's size in bytes, a space, and its description in JSON
-- ARGV  4 identity of the source file
-- ARGV  5 how many identities to remember
-- Returns 1, also to a repeat; 0 if the reservation is lost; or -1 if another publisher has begun
local channel = channel_at(KEYS)
local fence, id, record, identity, remembered = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('ZCOUNT', channel.files, id, id) > 0 then -- a repeat after a lost reply
  return 1
end
local latest = redis.call('HGET', channel.consumers, 'f')
if latest and latest ~= fence then
  return -1
end
if redis.call('HGET', channel.state, 'writing') ~= id then
  return redis.call('ZSCORE', channel.published, identity) and 1 or 0
end
redis.call('ZADD', channel.files, id, id .. ' ' .. record)
redis.call('ZADD', channel.published, digits(milliseconds()), identity)
redis.call('ZREMRANGEBYRANK', channel.published, 0, -remembered - 1)
redis.call('HDEL', channel.state, 'writing', 'size', 'source')
redis.call('HSET', channel.state, 'last', id)
free_acked(channel) -- all consumers may have been released
wake(channel, 'news')
return 1
