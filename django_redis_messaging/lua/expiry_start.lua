-- Starts a timer, in place of one of that name which has not begun: its real key, and the job that counts.
--
-- uses _requests.lua
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
-- KEYS  13 requests, first turn
-- KEYS  14 requests, second turn
-- KEYS  15 namespaces
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 most jobs that may wait in the namespace
-- ARGV  4 namespace
-- ARGV  5 id of the job
-- ARGV  6 name as JSON
-- ARGV  7 payload
-- ARGV  8 ms until it is due
-- ARGV  9 most attempts
-- ARGV  10 unique key
-- Returns the id of the job; or, with nothing done, how many would wait
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
local us = microseconds()
local now = math.floor(us / 1000)
local memory, window = {KEYS[13], KEYS[14]}, tonumber(ARGV[2])
local before = answer_to(ARGV[1], memory, window, now)
if before then
  return before
end
check_timer(records, queue, KEYS[15])
local id, unique = ARGV[5], ARGV[10]
local other = waiting_timer(records, unique)
local count = redis.call('ZCARD', queue.ready) + redis.call('ZCARD', queue.delayed) + (other and 0 or 1)
if count > tonumber(ARGV[3]) then
  return count
end
local due, last = due_after(us, tonumber(ARGV[8]))
-- First what is refused without memory: then nothing has been done.
redis.call('SET', KEYS[12], ARGV[7], 'PXAT', last)
if other then
  taken_out(queue, other)
  forgotten(records, other)
end
local state = {
  status = 'w', priority = 0, attempts = 0, most = ARGV[9], fence = 0, token = '-', pushed = digits(now),
  first = 0, last = 0, moment = digits(due), workers = '-', unique = unique,
}
redis.call('HSET', records.jobs, id, ARGV[6] .. '\n' .. ARGV[7])
redis.call('HSET', records.states, id, text_of(state))
redis.call('HSET', records.uniques, unique, id)
redis.call('ZADD', KEYS[15], 'GT', digits(due), ARGV[4])
queued(queue, id, 0, due, now)
memorized(ARGV[1], id, memory, window, now)
return id
