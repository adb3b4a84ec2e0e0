-- Takes out a job that has not started; has a running one cancelled.
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
-- ARGV  1 id
-- ARGV  2 ms to keep the cancellation as the job's result; 0: delete the job
-- ARGV  3 line for the log of attempts
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- ARGV  6 whether a dead job is cancelled, too: 1 or 0
-- ARGV  7 whether a running job is cancelled, too: 1 or 0
-- ARGV  8-12 limits of the slot, see _leases.lua: max_dead, dead_ttl, max_lost, max_results, result_ttl
-- Returns 1, or 2, also to a repeat; 2 if the holder of its lease is to cancel it: jobs/extend.lua tells it so, and without
-- that holder the job ends when it would be requeued; 0 if the job has started, has ended, or doesn't exist; with nothing
-- done, the payload of a job that waits in another queue
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _ended.lua.
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local id, ttl, line = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local request, window = ARGV[4], tonumber(ARGV[5])
local with_dead, with_running, limits = ARGV[6] == '1', ARGV[7] == '1', limits_at(ARGV, 8)
local now = milliseconds()
local before = find_answer(request, requests, window, now)
if before then
  return tonumber(before)
end
id = resolve_alias(records, id)
local state = read_state(records, id)
local removed = 0
local expired = state and state.status == 'waiting' and expired_at(state, now)
if expired and take_out(records, queue, id, state) == 1 then
  finish_job(records, id, state, 'expired', '', tonumber(limits.result_ttl), now, limits, expired)
elseif state and state.status == 'waiting' and not expired then
  removed = take_out(records, queue, id, state)
  if removed == 0 then
    return redis.call('HGET', records.jobs, id)
  end
elseif state and state.status == 'dead' and with_dead then
  removed = redis.call('ZREM', queue.dead, id)
elseif state and state.status == 'running' and with_running then
  redis.call('HDEL', records.outcomes, '') -- Redis never refuses it, nor the write after it
  state.cancel = digits(ttl)
  write_state(records, id, state)
  record_answer(request, '2', requests, window, now)
  return 2
end
if removed == 0 then
  wake_for_promoted()
  return 0
end
finish_job(records, id, state, 'cancelled', line, ttl, now, limits)
record_answer(request, '1', requests, window, now)
wake_for_promoted()
return 1
