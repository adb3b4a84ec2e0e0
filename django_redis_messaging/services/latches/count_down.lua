-- Counts events; with the last one, the latch opens and the waiting clients are woken.
--
-- uses _latches.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-5 latch (_latches.lua)
-- ARGV  1 number of events
-- ARGV  2 id of this call, the same for its repeats after a lost reply
-- ARGV  3 request id of the caller, counted once in a round; or empty
-- ARGV  4 round for which they are counted; 0: the present one
-- ARGV  5 count, used if none is stored
-- ARGV  6 how long the latch is kept: ms
-- ARGV  7 request window: ms
-- Returns the remaining count, to a repeat the first one; or -1 if it is another round
local latch = latch_at(KEYS)
local events, call, request, round = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local default_count, ttl, window = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local now = milliseconds()
local answer = find_answer(call, latch.requests, window, now)
if answer then
  return tonumber(answer)
end
local state = read_state(latch.state)
if round ~= 0 and not (state and state.round == round) then
  return -1
end
check_types('XLEN', latch.opening)
local counted = redis.call('HGET', latch.counted, request)

allow_writes_when_full(latch.state)
if not state then
  state, counted = begin_round(latch, nil, default_count), false
end
local remaining = counted or math.max(state.remaining - events, 0)
if not counted and state.remaining > 0 then
  redis.call('HSET', latch.state, 'remaining', remaining)
  if request ~= '' then -- at most one for each event of the count
    redis.call('HSET', latch.counted, request, remaining)
  end
  if remaining == 0 then
    redis.call('HSET', latch.state, 'opened', digits(state.round))
    wake_clients(latch.opening, state.round, state.round)
  end
  redis.call('PEXPIRE', latch.state, ttl)
  redis.call('PEXPIRE', latch.counted, ttl)
end
record_answer(call, remaining, latch.requests, window, now)
return tonumber(remaining)
