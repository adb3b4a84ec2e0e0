-- Changes when a timer that has not started is due.
--
-- uses _timers.lua
-- uses common/_time.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- KEYS  9 ready
-- KEYS  10 delayed
-- KEYS  11 leased
-- KEYS  12 dead
-- KEYS  13 bell
-- KEYS  14 timer
-- KEYS  15 namespaces
-- ARGV  1 unique key
-- ARGV  2 namespace
-- ARGV  3 ms until it is due
-- Returns 1, or 0 if the timer has started or doesn't exist
local records, queue = records_at(KEYS), queue_at(KEYS, 9)
local timer, namespaces = KEYS[14], KEYS[15]
local unique, namespace, after = ARGV[1], ARGV[2], tonumber(ARGV[3])
check_timer(records, queue, namespaces)
local id, state = find_timer(records, unique)
-- First a removal: when memory is full, Redis refuses the writes below unless a removal came before.
if not id or remove_timer(queue, id) == 0 then
  return 0
end
local us = microseconds()
local due, last = timer_due(us, after)
if redis.call('PEXPIREAT', timer, last) == 0 then
  redis.call('SET', timer, string.match(redis.call('HGET', records.jobs, id), '\n(.*)$'), 'PXAT', last)
end
uncount_attempt(state) -- of the listener that has claimed it, whose lease is stale now
state.status, state.token, state.moment = 'w', '-', digits(due)
write_state(records, id, state)
redis.call('ZADD', namespaces, 'GT', digits(due), namespace)
enqueue(queue, records, id, state.priority, due, math.floor(us / 1000))
return 1
