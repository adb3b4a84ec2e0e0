-- Settles the lease of a job that is done, and pushes another job.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
--
-- KEYS  1-8 records, see _records.lua
-- KEYS  9-13 queue of the job, see _queue.lua
-- KEYS  14-18 queue of the pushed job
-- ARGV  1 limits, as in _leases.lua
-- ARGV  2 lease: id
-- ARGV  3 lease: fence
-- ARGV  4 lease: token
-- ARGV  5 outcome: done
-- ARGV  6 outcome: ms to keep the result
-- ARGV  7 outcome: line for the log of attempts
-- ARGV  8 ids that may stand for one job: that of the pushed job, if its unique key is in use
-- ARGV  9 pushed job: id, which no other job has
-- ARGV  10 pushed job: payload
-- ARGV  11 pushed job: delay: ms, or @ and a moment in ms
-- ARGV  12 pushed job: priority
-- ARGV  13 pushed job: max attempts
-- ARGV  14 pushed job: unique key, or empty
-- Returns the moment (ms), also to a repeat, as long as the result is kept; 0, with nothing done, if the lease is stale
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _results.lua.
local records, queue, other_queue = records_at(KEYS), queue_at(KEYS, 1), queue_at(KEYS, 2)
local limits = parse_limits(ARGV[1])
local lease = {id = ARGV[2], fence = ARGV[3], token = ARGV[4]}
local outcome = {kind = ARGV[5], ms = tonumber(ARGV[6]), line = ARGV[7]}
local max_aliases, id, payload, delay = tonumber(ARGV[8]), ARGV[9], ARGV[10], ARGV[11]
local priority, max_attempts, unique = ARGV[12], ARGV[13], ARGV[14]
local us = microseconds()
local now = math.floor(us / 1000)

if settle(queue, records, lease, outcome, now, limits) == 0 then
  local state = read_state(records, lease.id)
  local is_repeat = state and state.status == 's' and state.fence == lease.fence
  return is_repeat and tonumber(state.moment) or 0
end
local holder = unique ~= '' and unique_holder(records, unique)
if holder then
  add_alias(records, id, holder, max_aliases)
else
  local due = math.max(due_after(delay, us), now)
  add_job(records, id, payload, new_state(digits(now), digits(due), priority, max_attempts, unique))
  enqueue(other_queue, records, id, priority, due, now)
end
return now
