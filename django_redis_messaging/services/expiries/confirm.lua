-- Starts a timer that was claimed because it is due, unless its real key lives longer.
--
-- uses _timers.lua
-- uses jobs/_records.lua
-- uses jobs/_results.lua
--
-- KEYS  1-24 timer, see _timers.lua
-- ARGV  1 id
-- ARGV  2 fence
-- ARGV  3 token
-- Returns 0 if the timer has started, now or before; the ms by which to delay it; or -1 if the lease is stale: the
-- timer was cancelled, replaced, extended, or claimed by another listener
local records, _, timer = timer_at(KEYS)
local id, fence, token = ARGV[1], ARGV[2], ARGV[3]
local state = leased_state(records, id, fence, token)
if not state or state.unique == '' then
  return state and 0 or -1
end
local left = redis.call('PTTL', timer)
if left > 0 then
  return left
end
release_unique(records, id, state.unique)
if left == -1 then
  redis.call('DEL', timer)
end
state.unique = ''
write_state(records, id, state)
return 0
