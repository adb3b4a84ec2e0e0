-- Removes a consumer that has acked the last file of a final channel; the last one deletes a closed channel.
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- KEYS  5 published
-- KEYS  6 news
-- KEYS  7 space
-- ARGV  1 consumer
-- ARGV  2 run of the channel
-- Returns 1 if it deleted the channel, else 0
local state, consumers, positions, files = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local published, news, space = KEYS[5], KEYS[6], KEYS[7]
local consumer, run = ARGV[1], ARGV[2]

local final, closed, places, current = unpack(redis.call('HMGET', state, 'final', 'closed', 'places', 'run'))
local position = redis.call('ZSCORE', positions, consumer)
if not final or current ~= run or not position or redis.call('ZCOUNT', files, '(' .. position, '+inf') > 0 then
  return 0 -- it has left before, or this is a new channel of the same name
end
redis.call('ZREM', positions, consumer)
if closed and redis.call('ZCARD', positions) == 0 and tonumber(places or 0) == 0 then
  redis.call('DEL', state, consumers, published, news, space)
  return 1
end
return 0
