-- Begins a timer that was claimed because it is due, unless its real key was told to live longer.
--
-- uses _states.lua
-- uses _records.lua
-- uses _leases.lua
--
-- KEYS  1 states
-- KEYS  2 uniques
-- KEYS  3 timer
-- ARGV  1 id
-- ARGV  2 fence
-- ARGV  3 token
-- Returns 0 when it has begun, now or before; the ms for which it is to go back; or -1 when it is not the
-- caller's any more: cancelled, replaced, extended, or claimed by another
local records = {states = KEYS[1], uniques = KEYS[2]}
local state = held(records, ARGV[1], ARGV[2], ARGV[3])
if not state or state.unique == '' then
  return state and 0 or -1
end
local left = redis.call('PTTL', KEYS[3])
if left > 0 then
  return left
end
released(records, ARGV[1], state.unique)
if left == -1 then
  redis.call('DEL', KEYS[3])
end
state.unique = ''
redis.call('HSET', records.states, ARGV[1], text_of(state))
return 0
