-- Deletes dead jobs of a queue, or results, before they expire.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 place: dead, or finished: the results of the slot
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4… ids
-- Returns the number of deleted jobs: those that are still there; a repeat gets the first answer
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local place, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local FIRST = 4
local zset = place == 'dead' and queue.dead or records.finished
local now = milliseconds()
local answer = find_answer(request, requests, window, now)
if answer then
  return tonumber(answer)
end
local count = 0
for at = FIRST, #ARGV do
  local id = resolve_alias(records, ARGV[at])
  if redis.call('ZREM', zset, id) == 1 then
    delete_job(records, id)
    count = count + 1
  end
end
if count > 0 then
  record_answer(request, digits(count), requests, window, now)
end
return count
