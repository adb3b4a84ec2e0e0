-- Checks for a waiting client whether the latch has opened. The first poll creates the latch if it doesn't exist.
--
-- uses _latches.lua
-- uses common/_writes.lua
--
-- KEYS  1-5 latch (_latches.lua)
-- ARGV  1 round in which the client began to wait; 0 for its first poll
-- ARGV  2 count, used if none is stored
-- ARGV  3 how long the latch is kept: ms
-- Returns 0 if it is open, or has been open since then; the round since which the client waits; or -1 if the latch
-- doesn't exist any more
local latch = latch_at(KEYS)
local round, default_count, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local state = read_state(latch.state)
if not state and round == 0 then
  check_types('XLEN', latch.opening)
  check_types('HLEN', latch.counted)
  allow_writes_when_full(latch.state)
  state = begin_round(latch, nil, default_count)
  redis.call('PEXPIRE', latch.state, ttl)
end
if round == 0 then
  return state.remaining == 0 and 0 or state.round
end
local _, opened = latest_opening(latch.opening)
if math.max(opened, state and state.opened or 0) >= round then
  return 0
end
-- It may have been created anew since. A smaller round began after Redis lost the latch and its clock was set back.
return state and state.created <= round and state.round >= round and round or -1
