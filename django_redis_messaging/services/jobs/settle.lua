-- Settles the lease of one job. If the job is done, pushes another one that follows it, if any.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _waiting.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16… queue of the job, and that of the job to push, see _queue.lua
-- ARGV  1-5 limits of the slot, see _leases.lua: max_dead, dead_ttl, max_lost, max_results, result_ttl
-- ARGV  6 lease: id
-- ARGV  7 lease: fence
-- ARGV  8 lease: token
-- ARGV  9 outcome: one of those of Outcome in engine.py
-- ARGV  10 outcome: ms to keep the result, or to delay the next attempt
-- ARGV  11 outcome: line for the log of attempts
-- ARGV  12… the job to push: ids that may stand for one job (this one, if its unique key is in use), id, which no
--          other job has, payload, delay (ms, or @ and a moment in ms), priority, max attempts, unique key or empty,
--          and the other fields that never change, as text
-- Returns the moment (ms), also to a repeat, as long as the result is kept; 0, with nothing done, if the lease is stale
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _ended.lua.
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local limits = limits_at(ARGV, 1)
local id, fence = ARGV[6], ARGV[7]
local FIRST, FOLLOW_UP = 6, 12
local us = microseconds()
local now = math.floor(us / 1000)

if settle(queue, records, now, limits, unpack(ARGV, FIRST, FOLLOW_UP - 1)) == 1 then
  wake_for_promoted()
  if ARGV[FOLLOW_UP] then
    push_follow_up(queue_at(KEYS, 2), records, us, unpack(ARGV, FOLLOW_UP))
  end
  return now
end
local state = read_state(records, id)
local is_repeat = state and state.status == 'succeeded' and state.fence == fence
return is_repeat and tonumber(state.moment) or 0
