-- Pauses a queue or the jobs of a task: claims lease none of them.
--
-- uses _records.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- ARGV  1 queue:NAME or task:NAME, the name as it is in keys and states
-- ARGV  2 further fields, as text: by whom, and why
-- ARGV  3 how many queues and tasks may be paused
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- Returns 1, also to a repeat; 0 if it was paused before, and only the further fields have changed; -1 if too many are
-- paused, with nothing done
local records, requests = records_at(KEYS), requests_at(KEYS)
local which, more, max_paused = ARGV[1], ARGV[2], tonumber(ARGV[3])
local request, window = ARGV[4], tonumber(ARGV[5])
local now = milliseconds()
if find_answer(request, requests, window, now) then
  return 1
end
local before = redis.call('HGET', records.paused, which)
if not before and redis.call('HLEN', records.paused) >= max_paused then
  return -1
end
local since = before and string.match(before, '^since=(%d+)') or digits(now)
redis.call('HSET', records.paused, which, 'since=' .. since .. more)
if before then
  return 0
end
record_answer(request, '1', requests, window, now)
return 1
