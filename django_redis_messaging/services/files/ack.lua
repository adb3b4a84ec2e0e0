-- Records that a consumer has processed a file, the first one that it has not acked; frees files that all consumers
-- have acked.
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
-- ARGV  3 id of the file
-- Returns {'stale'}: another process has the lease, or the consumer was released; {'order'}: an earlier file has not
-- been acked; or, with members of the trash, {'ok', member…} or, for the last file of a final channel, {'end', member…}
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumer, fence, id = ARGV[1], ARGV[2], ARGV[3]

redis.call('HDEL', state, '') -- a full server refuses no write after this one
local position = redis.call('ZSCORE', positions, consumer)
if not position or is_stale(consumers, consumer, fence) then
  return {'stale'}
end
redis.call('HSET', consumers, 's' .. consumer, digits(milliseconds()))
if tonumber(position) < tonumber(id) then
  if redis.call('ZCOUNT', files, '(' .. position, '(' .. id) > 0 then
    return {'order'}
  end
  redis.call('ZADD', positions, id, consumer)
end
free_acked(state, positions, files, trash)
local is_last = redis.call('HGET', state, 'final') and redis.call('ZCOUNT', files, '(' .. id, '+inf') == 0
return with_trash({is_last and 'end' or 'ok'}, trash)
