-- Starts a timer, in place of one of the same name that has not started: its real key, and its job.
--
-- uses _timers.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
-- uses jobs/_results.lua
--
-- KEYS  1-24 timer, see _timers.lua
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 offset of the request windows: ms
-- ARGV  4 limit of waiting timers in the namespace
-- ARGV  5 namespace
-- ARGV  6 unique key
-- ARGV  7 ms until it is due
-- ARGV  8 id of the job
-- ARGV  9 name, as JSON
-- ARGV  10 payload, as JSON
-- ARGV  11 max attempts
-- Returns the id of the job; if the limit is exceeded, the number of timers that would wait, with nothing done
local records, queue, timer, namespaces = timer_at(KEYS)
local requests = requests_at(KEYS, tonumber(ARGV[3]))
local request, window, max_waiting = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local namespace, unique, after = ARGV[5], ARGV[6], tonumber(ARGV[7])
local job = {id = ARGV[8], name = ARGV[9], payload = ARGV[10], max_attempts = ARGV[11]}
local us = microseconds()
local now = math.floor(us / 1000)
local before = find_answer(request, requests, window, now)
if before then
  return before
end
check_timer(records, queue, namespaces)
local replaced = find_timer(records, unique, '')
local waiting = count_waiting(queue) + (replaced and 0 or 1)
if waiting > max_waiting then
  return waiting
end
local due, last = timer_due(us, after)
-- First a write that Redis refuses when memory is full: nothing has been done then.
redis.call('SET', timer, job.payload, 'PXAT', last)
if replaced then
  remove_timer(queue, replaced)
  delete_job(records, replaced, '')
end
add_job(records, job.id, job.name .. '\n' .. job.payload, now, due, '0', job.max_attempts, unique, '')
redis.call('ZADD', namespaces, 'GT', digits(due), namespace)
enqueue(queue, records, job.id, '0', due, now, '')
record_answer(request, job.id, requests, window, now)
return job.id
