-- Announces a file whose blocks are complete to all consumers.
--
-- uses _files.lua
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- KEYS  5 trash
-- KEYS  6 published
-- KEYS  7 news
-- ARGV  1 fence of the publisher's lease
-- ARGV  2 id of the file
-- ARGV  3 the file's size in bytes, a space, and its description in JSON
-- ARGV  4 identity of the source file
-- ARGV  5 how many identities to remember
-- Returns 1, also to a repeat; 0 if the reservation is lost; or -1 if another publisher has begun
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local published, news = KEYS[6], KEYS[7]
local fence, id, record, identity, remembered = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('ZCOUNT', files, id, id) > 0 then -- a repeat after a lost reply
  return 1
end
local latest = redis.call('HGET', consumers, 'f')
if latest and latest ~= fence then
  return -1
end
if redis.call('HGET', state, 'writing') ~= id then
  return redis.call('ZSCORE', published, identity) and 1 or 0
end
redis.call('ZADD', files, id, id .. ' ' .. record)
redis.call('ZADD', published, digits(milliseconds()), identity)
redis.call('ZREMRANGEBYRANK', published, 0, -remembered - 1)
redis.call('HDEL', state, 'writing', 'size', 'source')
redis.call('HSET', state, 'last', id)
free_acked(state, positions, files, trash) -- all consumers may have been released
wake(state, news, 'news')
return 1
