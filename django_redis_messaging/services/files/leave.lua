-- Removes a consumer that has acked the last file of a final channel; the last one deletes a closed channel.
--
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 consumer
-- ARGV  2 run of the channel
-- Returns 1 if it deleted the channel, else 0
local channel = channel_at(KEYS)
local consumer, run = ARGV[1], ARGV[2]

local final, closed, places, current = unpack(redis.call('HMGET', channel.state, 'final', 'closed', 'places', 'run'))
local position = redis.call('ZSCORE', channel.positions, consumer)
if not final or current ~= run or not position or redis.call('ZCOUNT', channel.files, '(' .. position, '+inf') > 0 then
  return 0 -- it has left before, or this is a new channel of the same name
end
redis.call('ZREM', channel.positions, consumer)
if closed and redis.call('ZCARD', channel.positions) == 0 and tonumber(places or 0) == 0 then
  redis.call('DEL', channel.state, channel.consumers, channel.published, channel.news, channel.space)
  return 1
end
return 0
