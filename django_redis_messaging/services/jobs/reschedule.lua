-- Changes when a waiting job is due, or its priority.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _waiting.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 id
-- ARGV  2 delay in ms, or @ and a moment in ms; empty: as before
-- ARGV  3 line for the log of attempts
-- ARGV  4 priority; empty: as before
-- Returns 1; 0 if the job doesn't wait any more, has expired, or doesn't exist; with nothing done, the payload of a job that
-- waits in another queue
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local id, delay, line, priority = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
id = resolve_alias(records, id)
local state = read_state(records, id)
local us = microseconds()
local now = math.floor(us / 1000)
if not state or state.status ~= 'waiting' or expired_at(state, now) then
  return 0
elseif state.priority == priority then
  return 1 -- it keeps its place, also in a repeat
elseif take_out(records, queue, id, state) == 0 then
  return redis.call('HGET', records.jobs, id)
end
local due = tonumber(state.moment)
if delay ~= '' then
  due = due_after(delay, us)
  state.moment = digits(math.max(due, now))
end
state.priority = priority ~= '' and priority or state.priority
write_state(records, id, state)
enqueue(queue, records, id, state.priority, due, now, state.more)
append_log(records, id, line)
wake_for_promoted()
return 1
