-- Removes jobs of a queue, wherever they are, some at a time.
--
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
-- ARGV  1 how many
-- Returns how many were removed
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
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
return ARGV[1] - left
