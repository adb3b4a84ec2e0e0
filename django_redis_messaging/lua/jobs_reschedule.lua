-- Gives a job that waits another moment.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- uses _records.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 ready
-- KEYS  8 delayed
-- KEYS  9 leased
-- KEYS  10 dead
-- KEYS  11 bell
-- ARGV  1 id
-- ARGV  2 delay in ms, or @ and the moment in ms
-- ARGV  3 line for the outcomes
-- Returns 1, or 0 when it doesn't wait any more, or was never there
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
local id = redis.call('HGET', records.aliases, 'a' .. ARGV[1]) or ARGV[1]
local text = redis.call('HGET', records.states, id)
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
redis.call('HSET', records.states, id, text_of(state))
queued(queue, id, state.priority, due, now)
noted(records, id, ARGV[3])
return 1
