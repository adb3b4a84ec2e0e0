-- Describes a channel and its consumers.
--
-- reads only
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- Returns {used, limit, final, places, number of files, {consumer, …}}, where a consumer is {name, number of files that
-- it has not acked, ms at which it was last seen or nil}; or nil without a channel
local channel = channel_at(KEYS)

if redis.call('EXISTS', channel.state) == 0 then
  return nil
end
local reply = redis.call('HMGET', channel.state, 'used', 'limit', 'final', 'places')
reply[5] = redis.call('ZCARD', channel.files)
local found, described = redis.call('ZRANGE', channel.positions, 0, -1, 'WITHSCORES'), {}
for at = 1, #found, 2 do
  local name, position = found[at], found[at + 1]
  described[#described + 1] = {
    name,
    redis.call('ZCOUNT', channel.files, '(' .. position, '+inf'),
    redis.call('HGET', channel.consumers, 's' .. name),
  }
end
reply[6] = described
return reply
