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
-- Returns 1, also to a repeat; 0 if it was not paused; 2 more if there may be further parked jobs: then it is called again
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
local records, requests, bell = records_at(KEYS), requests_at(KEYS), KEYS[16]
local which, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- Jobs of a task that are promoted at once, in each queue: the claims that lease them promote the others.
local PAGE = 20
local now = milliseconds()
local before = find_answer(request, requests, window, now)
if before then
  return tonumber(before)
end
local removed = redis.call('HDEL', records.paused, which)
local answer = removed
if bell then
  ring_bell({bell = bell})
else
  local name = string.gsub(which, '^task:', 'pause:')
  answer = answer + (promote_all(records, name, PAGE) and 2 or 0)
  wake_for_promoted()
end
if removed == 1 then
  record_answer(request, digits(answer), requests, window, now)
end
return answer
