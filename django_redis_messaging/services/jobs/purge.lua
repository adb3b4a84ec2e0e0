-- Deletes jobs of a queue, wherever they are, a page at a time.
--
-- uses _batches.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _tags.lua
-- uses _waiting.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 number of jobs
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns the number of deleted jobs; a repeat gets the first answer
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _ended.lua.
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local count, request, window = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local now = milliseconds()
local before = find_answer(request, requests, window, now)
if before then
  return tonumber(before)
end
local left = count
redis.call('DEL', queue.bell)

-- Deletes a job that was in a queue. The end of its lease, if it has one, frees what it holds.
local function purge_job(id)
  local state = read_state(records, id)
  local unique = state and state.unique or ''
  release_unique(records, id, unique)
  if state then
    release_needs(records, id, state)
    remove_tags(records, id, state.more)
    wake_waiters(records, id, state)
    count_end(records, state, 'cancelled', now)
  end
  delete_job(records, id, unique)
end

-- Parked jobs go first: a promoted one that goes before them would have to promote the next.
for _, zset in ipairs({queue.parked, queue.ready, queue.delayed, queue.leased, queue.dead}) do
  if left > 0 and zset == queue.delayed then
    redis.call('ZREM', zset, MARKER)
  end
  local members = left > 0 and redis.call('ZRANGE', zset, 0, left - 1) or {}
  for _, member in ipairs(members) do
    purge_job(zset == queue.parked and string.match(member, '^%S+ %d+ (.*)$') or member)
    redis.call('ZREM', zset, member)
  end
  left = left - #members
end
if redis.call('EXISTS', queue.ready) == 0 then
  redis.call('DEL', queue.groups)
end
local deleted = count - left
if deleted > 0 then
  record_answer(request, tostring(deleted), requests, window, now)
end
wake_for_promoted()
return deleted
