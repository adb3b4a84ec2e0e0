-- Takes out jobs of a queue that wait; has running ones cancelled.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _waiting.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 ms to keep the cancellations as the results of the jobs; 0: delete the jobs
-- ARGV  2 line for the logs of attempts
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5-9 limits of the slot, see _leases.lua: max_dead, dead_ttl, max_lost, max_results, result_ttl
-- ARGV  10… ids
-- Returns the number of jobs that were taken out, or that the holders of their leases are to cancel, see jobs/cancel.lua;
-- a repeat gets the first answer
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _ended.lua.
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local ttl, line = tonumber(ARGV[1]), ARGV[2]
local request, window, limits = ARGV[3], tonumber(ARGV[4]), limits_at(ARGV, 5)
local FIRST = 10
local now = milliseconds()
local before = find_answer(request, requests, window, now)
if before then
  return tonumber(before)
end

-- Returns whether the job is cancelled, or will be.
local function cancel(id)
  local state = read_state(records, id)
  local expired = state and state.status == 'waiting' and expired_at(state, now)
  if expired and take_out(records, queue, id, state) == 1 then
    finish_job(records, id, state, 'expired', '', tonumber(limits.result_ttl), now, limits, expired)
  end
  if not state or expired then
    return false
  elseif state.status == 'waiting' and take_out(records, queue, id, state) == 1 then
    finish_job(records, id, state, 'cancelled', line, ttl, now, limits)
    return true
  elseif state.status == 'running' and state.cancel == '-' then
    redis.call('HDEL', records.outcomes, '') -- Redis never refuses it, nor the write after it
    state.cancel = digits(ttl)
    write_state(records, id, state)
    return true
  end
  return false
end

local count = 0
for at = FIRST, #ARGV do
  count = count + (cancel(ARGV[at]) and 1 or 0)
end
if count > 0 then
  record_answer(request, digits(count), requests, window, now)
end
wake_for_promoted()
return count
