-- Deletes jobs of a queue, wherever they are, a page at a time.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-8 records, see _records.lua
-- KEYS  9-13 queue, see _queue.lua
-- ARGV  1 number of jobs
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns the number of deleted jobs; a repeat gets the first answer
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _results.lua.
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local count, request, window = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local now = milliseconds()
local before = find_answer(request, requests, window, now)
if before then
  return tonumber(before)
end
local left = count
redis.call('DEL', queue.bell)
for _, zset in ipairs({queue.ready, queue.delayed, queue.leased, queue.dead}) do
  local ids = left > 0 and redis.call('ZRANGE', zset, 0, left - 1) or {}
  for _, id in ipairs(ids) do
    local state = read_state(records, id)
    local unique = state and state.unique or ''
    release_unique(records, id, unique)
    if state then
      wake_waiters(records, id, state)
    end
    delete_job(records, id, unique)
    redis.call('ZREM', zset, id)
  end
  left = left - #ids
end
local deleted = count - left
if deleted > 0 then
  record_answer(request, tostring(deleted), requests, window, now)
end
return deleted
