-- Deletes a latch, and wakes the waiting clients.
--
-- uses _latches.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-5 latch (_latches.lua)
-- ARGV  1 id of this call, the same for its repeats after a lost reply
-- ARGV  2 request window: ms
-- Returns 1, also to a repeat; or 0 if the latch doesn't exist
local latch = latch_at(KEYS)
local call, window = ARGV[1], tonumber(ARGV[2])
local now = microseconds()
local answer = find_answer(call, latch.requests, window, now / 1000)
if answer then
  return tonumber(answer)
end
local state = read_state(latch.state)
if not state then
  return 0
end
check_types('XLEN', latch.opening)
check_types('HLEN', latch.counted)
-- DEL comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('DEL', latch.state)
redis.call('UNLINK', latch.counted)
wake_clients(latch.opening, math.max(now, state.round + 1), state.opened)
record_answer(call, 1, latch.requests, window, now / 1000)
return 1
