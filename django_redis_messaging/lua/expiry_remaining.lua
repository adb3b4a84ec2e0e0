-- How long it is until a timer is due.
--
-- uses _states.lua
-- uses _microseconds.lua
-- reads only
--
-- KEYS  1 states
-- KEYS  2 uniques
-- KEYS  3 timer
-- ARGV  1 unique key
-- Returns ms, 0 or more; or -1 when it has begun, or there is none
local id = redis.call('HGET', KEYS[2], ARGV[1])
local text = id and redis.call('HGET', KEYS[1], id)
if not text then
  return -1
end
-- Rounded down, so that it is never more than was asked for. The real key counts where it lives longer.
local left = math.floor(state_of(text).moment - microseconds() / 1000)
return math.max(left, redis.call('PTTL', KEYS[3]), 0)
