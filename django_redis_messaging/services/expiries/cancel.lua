-- Cancels a timer that has not started.
--
-- uses _timers.lua
-- uses jobs/_results.lua
--
-- KEYS  1-24 timer, see _timers.lua
-- ARGV  1 unique key
-- ARGV  2 id that the timer must have; empty: any
-- Returns 1, or 0 if the timer has started or doesn't exist
local records, queue, timer = timer_at(KEYS)
local unique, expected = ARGV[1], ARGV[2]
check_timer(records, queue)
local id = find_timer(records, unique, expected)
if not id or remove_timer(queue, id) == 0 then
  return 0
end
redis.call('DEL', timer)
release_unique(records, id, unique)
delete_job(records, id, '')
return 1
