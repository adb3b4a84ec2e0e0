-- Begins a new round.
--
-- uses _latches.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-5 latch (_latches.lua)
-- ARGV  1 id of this call, the same for its repeats after a lost reply
-- ARGV  2 count of the round; 0: as before
-- ARGV  3 count, used if none is stored
-- ARGV  4 how long the latch is kept: ms
-- ARGV  5 request window: ms
-- Returns the number of the round
local latch = latch_at(KEYS)
local call, count, default_count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl, window = ARGV[4], tonumber(ARGV[5])
local now = milliseconds()
local answer = find_answer(call, latch.requests, window, now)
if answer then
  return tonumber(answer)
end
local state = read_state(latch.state)
check_types('XLEN', latch.opening)
check_types('HLEN', latch.counted)
allow_writes_when_full(latch.state)
if count == 0 then
  count = state and state.count or default_count
end
local round = begin_round(latch, state, count).round
record_answer(call, digits(round), latch.requests, window, now)
redis.call('PEXPIRE', latch.state, ttl)
return round
