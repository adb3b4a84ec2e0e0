-- Removes jobs of a queue, wherever they are, some at a time.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _states.lua
-- uses _queue.lua
-- uses _records.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 ready
-- KEYS  8 delayed
-- KEYS  9 leased
-- KEYS  10 dead
-- KEYS  11 bell
-- KEYS  12 requests, first turn
-- KEYS  13 requests, second turn
-- ARGV  1 how many
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns how many were removed; a repeat is answered as the first time
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
local memory, window, now = {KEYS[12], KEYS[13]}, tonumber(ARGV[3]), clock()
local before = answer_to(ARGV[2], memory, window, now)
if before then
  return tonumber(before)
end
local left = tonumber(ARGV[1])
redis.call('DEL', queue.bell)
for _, list in ipairs({queue.ready, queue.delayed, queue.leased, queue.dead}) do
  local ids = left > 0 and redis.call('ZRANGE', list, 0, left - 1) or {}
  for _, id in ipairs(ids) do
    local text = redis.call('HGET', records.states, id)
    local unique = text and state_of(text).unique or ''
    released(records, id, unique)
    forgotten(records, id, unique)
    redis.call('ZREM', list, id)
  end
  left = left - #ids
end
local removed = ARGV[1] - left
if removed > 0 then
  memorized(ARGV[2], tostring(removed), memory, window, now)
end
return removed
