-- Reads how long it is until a timer is due.
--
-- uses _timers.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-24 timer, see _timers.lua
-- ARGV  1 unique key
-- Returns ms, 0 or more; -1 if the timer has started or doesn't exist
local records, _, timer = timer_at(KEYS)
local unique = ARGV[1]
local id, state = find_timer(records, unique, '')
if not id then
  return -1
end
-- Rounded down: never more than was asked for. A real key that lives longer counts.
local left = math.floor(state.moment - microseconds() / 1000)
return math.max(left, redis.call('PTTL', timer), 0)
