-- Takes out a timer that has not begun.
--
-- uses _states.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _types.lua
-- uses _timers.lua
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
-- KEYS  12 timer
-- ARGV  1 unique key
-- Returns 1, or 0 when it has begun, or there is none
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
check_timer(records, queue)
local id = waiting_timer(records, ARGV[1])
if not id or taken_out(queue, id) == 0 then
  return 0
end
redis.call('DEL', KEYS[12])
released(records, id, ARGV[1])
forgotten(records, id)
return 1
