-- Describes a channel and its consumers.
--
-- reads only
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- Returns {used, limit, final, places, number of files, {consumer, …}}, where a consumer is {name, number of files that
-- it has not acked, ms at which it was last seen or nil}; or nil without a channel
local state, consumers, positions, files = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

if redis.call('EXISTS', state) == 0 then
  return nil
end
local reply = redis.call('HMGET', state, 'used', 'limit', 'final', 'places')
reply[5] = redis.call('ZCARD', files)
local found, described = redis.call('ZRANGE', positions, 0, -1, 'WITHSCORES'), {}
for at = 1, #found, 2 do
  local name, position = found[at], found[at + 1]
  described[#described + 1] = {
    name, redis.call('ZCOUNT', files, '(' .. position, '+inf'), redis.call('HGET', consumers, 's' .. name),
  }
end
reply[6] = described
return reply
