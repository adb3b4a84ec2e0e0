-- Cancels a timer that has not started.
--
-- uses _timers.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
-- uses jobs/_results.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- KEYS  9 ready
-- KEYS  10 delayed
-- KEYS  11 leased
-- KEYS  12 dead
-- KEYS  13 bell
-- KEYS  14 timer
-- ARGV  1 unique key
-- Returns 1, or 0 if the timer has started or doesn't exist
local records, queue, timer = records_at(KEYS), queue_at(KEYS, 9), KEYS[14]
local unique = ARGV[1]
check_timer(records, queue)
local id = find_timer(records, unique)
if not id or remove_timer(queue, id) == 0 then
  return 0
end
redis.call('DEL', timer)
release_unique(records, id, unique)
delete_job(records, id, '')
return 1
