-- The jobs of a queue that were buried, the latest first.
--
-- uses _clock.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 dead
-- ARGV  1 how many
-- ARGV  2 age at which a dead job is forgotten: ms
-- Returns for each: id, payload, state, outcomes
local reply = {}
local since = string.format('%.0f', clock() - ARGV[2])
for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[4], '+inf', '(' .. since, 'LIMIT', 0, ARGV[1])) do
  local payload, state = redis.call('HGET', KEYS[1], id), redis.call('HGET', KEYS[2], id)
  if payload and state then
    reply[#reply + 1] = id
    reply[#reply + 1] = payload
    reply[#reply + 1] = state
    reply[#reply + 1] = redis.call('HGET', KEYS[3], id) or ''
  end
end
return reply
