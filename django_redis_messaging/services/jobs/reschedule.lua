-- Changes when a waiting job is due.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _waiting.lua
-- uses common/_time.lua
--
-- KEYS  1-14 records, see _records.lua
-- KEYS  15-20 queue, see _queue.lua
-- ARGV  1 id
-- ARGV  2 delay in ms, or @ and a moment in ms
-- ARGV  3 line for the log of attempts
-- Returns 1; 0 if the job doesn't wait any more, or doesn't exist; with nothing done, the payload of a job that waits
-- in another queue
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local id, delay, line = ARGV[1], ARGV[2], ARGV[3]
id = resolve_alias(records, id)
local state = read_state(records, id)
if not state or state.status ~= 'waiting' then
  return 0
elseif take_out(records, queue, id, state) == 0 then
  return redis.call('HGET', records.jobs, id)
end
local us = microseconds()
local now = math.floor(us / 1000)
local due = due_after(delay, us)
state.moment = digits(math.max(due, now))
write_state(records, id, state)
enqueue(queue, records, id, state.priority, due, now)
append_log(records, id, line)
wake_for_promoted()
return 1
