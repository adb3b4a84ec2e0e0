-- Reads how long it is until a timer is due.
--
-- uses _timers.lua
-- uses common/_time.lua
-- uses jobs/_records.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- KEYS  9 timer
-- ARGV  1 unique key
-- Returns ms, 0 or more; -1 if the timer has started or doesn't exist
local records, timer = records_at(KEYS), KEYS[9]
local unique = ARGV[1]
local id, state = find_timer(records, unique)
if not id then
  return -1
end
-- Rounded down: never more than was asked for. A real key that lives longer counts.
local left = math.floor(state.moment - microseconds() / 1000)
return math.max(left, redis.call('PTTL', timer), 0)
