-- Lets a timer that has not begun be due at another moment.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _types.lua
-- uses _timers.lua
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
-- KEYS  12 timer
-- KEYS  13 namespaces
-- ARGV  1 unique key
-- ARGV  2 namespace
-- ARGV  3 ms until it is due
-- Returns 1, or 0 when it has begun, or there is none
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
check_timer(records, queue, KEYS[13])
local id, state = waiting_timer(records, ARGV[1])
-- Removing is first: without memory the rest is refused, unless a removal came before.
if not id or taken_out(queue, id) == 0 then
  return 0
end
local us = microseconds()
local due, last = due_after(us, tonumber(ARGV[3]))
if redis.call('PEXPIREAT', KEYS[12], last) == 0 then
  redis.call('SET', KEYS[12], string.match(redis.call('HGET', records.jobs, id), '\n(.*)$'), 'PXAT', last)
end
-- Who had claimed it has no lease any more, and the attempt doesn't count.
if state.status == 'r' then
  state.attempts, state.workers = state.attempts - 1, string.match(state.workers, '^(.*),[^,]*$') or '-'
end
state.status, state.token, state.moment = 'w', '-', digits(due)
redis.call('HSET', records.states, id, text_of(state))
redis.call('ZADD', KEYS[13], 'GT', digits(due), ARGV[2])
queued(queue, id, state.priority, due, math.floor(us / 1000))
return 1
