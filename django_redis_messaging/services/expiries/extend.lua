-- Changes when a timer that has not started is due.
--
-- uses _timers.lua
-- uses common/_time.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
--
-- KEYS  1-24 timer, see _timers.lua
-- ARGV  1 unique key
-- ARGV  2 namespace
-- ARGV  3 ms until it is due, or @ and a moment in ms
-- ARGV  4 id that the timer must have; empty: any
-- Returns 1, or 0 if the timer has started or doesn't exist
local records, queue, timer, namespaces = timer_at(KEYS)
local unique, namespace, after, expected = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check_timer(records, queue, namespaces)
local id, state = find_timer(records, unique, expected)
-- First a removal: when memory is full, Redis refuses the writes below unless a removal came before.
if not id or remove_timer(queue, id) == 0 then
  return 0
end
local us = microseconds()
local now = math.floor(us / 1000)
local due = math.max(due_after(after, us), now)
local last = digits(due - 1)
if redis.call('PEXPIREAT', timer, last) == 0 then
  redis.call('SET', timer, string.match(redis.call('HGET', records.jobs, id), '\n(.*)$'), 'PXAT', last)
end
uncount_attempt(state) -- of the listener that has claimed it, whose lease is stale now
state.status, state.token, state.moment = 'waiting', '-', digits(due)
write_state(records, id, state)
redis.call('ZADD', namespaces, 'GT', digits(due), namespace)
enqueue(queue, records, id, state.priority, due, now, '')
return 1
