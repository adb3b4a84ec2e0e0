-- How many jobs of a queue are where, as they would be if everything due by time had been done.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- reads only
--
-- KEYS  1 states
-- KEYS  2 ready
-- KEYS  3 delayed
-- KEYS  4 leased
-- KEYS  5 dead
-- KEYS  6 bell
-- ARGV  1 age at which a dead job is forgotten: ms
-- Returns ready, delayed, leased, dead, and the ms that the oldest ready one has been due for, or -1
local queue = queue_at(KEYS, 2)
local now = math.floor(microseconds() / 1000)
local due = redis.call('ZCOUNT', queue.delayed, '-inf', now)
local lost = redis.call('ZCOUNT', queue.leased, '-inf', now)
local oldest = tonumber(redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')[2])
-- A lease that ran out in a last attempt leaves a dead job. Only the first ones are looked at.
local over = 0
local ended = redis.call('ZRANGEBYSCORE', queue.leased, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 500)
for at = 1, #ended, 2 do
  local text = redis.call('HGET', KEYS[1], ended[at])
  local state = text and state_of(text)
  if state and state.attempts >= state.most then
    over = over + 1
  else
    oldest = math.min(oldest or tonumber(ended[at + 1]), tonumber(ended[at + 1]))
  end
end
local from = '-inf'
while true do
  local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    break
  end
  local text = redis.call('HGET', KEYS[1], head[1])
  local moment = text and tonumber(state_of(text).moment)
  oldest = moment and math.min(oldest or moment, moment) or oldest
  from = digits((math.floor(tonumber(head[2]) / BAND) + 1) * BAND)
end
return {
  redis.call('ZCARD', queue.ready) + due + lost - over,
  redis.call('ZCARD', queue.delayed) - due,
  redis.call('ZCARD', queue.leased) - lost,
  redis.call('ZCOUNT', queue.dead, '(' .. digits(now - ARGV[1]), '+inf') + over,
  oldest and oldest <= now and now - oldest or -1,
}
