-- Ends the pause of a queue or of a task.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _waiting.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16 bell of the queue; none for a task
-- ARGV  1 queue:NAME or task:NAME, as in jobs/pause.lua
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns 1, also to a repeat; 0 if it was not paused
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
local records, requests, bell = records_at(KEYS), requests_at(KEYS), KEYS[16]
local which, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- Jobs of a task that are promoted at once, in each queue: the claims that lease them promote the others.
local PAGE = 100
local now = milliseconds()
if find_answer(request, requests, window, now) then
  return 1
end
local removed = redis.call('HDEL', records.paused, which)
if bell then
  ring_bell({bell = bell})
else
  promote_all(records, string.gsub(which, '^task:', 'pause:'), PAGE)
  wake_for_promoted()
end
if removed == 1 then
  record_answer(request, '1', requests, window, now)
end
return removed
