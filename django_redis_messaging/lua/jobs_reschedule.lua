-- Gives a job that waits another moment.
--
-- uses _states.lua
-- uses _queue.lua
--
-- KEYS  1 states
-- KEYS  2 aliases
-- KEYS  3 ready
-- KEYS  4 delayed
-- KEYS  5 leased
-- KEYS  6 dead
-- KEYS  7 bell
-- ARGV  1 id
-- ARGV  2 delay in ms, or @ and the moment in ms
-- Returns 1, or 0 when it doesn't wait any more, or was never there
local queue = queue_at(KEYS, 3)
local id = redis.call('HGET', KEYS[2], 'a' .. ARGV[1]) or ARGV[1]
local text = redis.call('HGET', KEYS[1], id)
local state = text and state_of(text)
if not state or state.status ~= 'w' then
  return 0
end
if redis.call('ZREM', queue.ready, id) + redis.call('ZREM', queue.delayed, id) == 0 then
  return 0
end
local us = microseconds()
local now = math.floor(us / 1000)
local moment = string.match(ARGV[2], '^@(%d+)$')
local due = moment and tonumber(moment) or ARGV[2] == '0' and now or math.ceil(us / 1000) + tonumber(ARGV[2])
state.moment = digits(math.max(due, now))
redis.call('HSET', KEYS[1], id, text_of(state))
queued(queue, id, state.priority, due, now)
return 1
