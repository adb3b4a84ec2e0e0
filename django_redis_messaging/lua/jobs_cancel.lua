-- Takes a job out that has not begun.
--
-- uses _requests.lua
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- uses _records.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 ready
-- KEYS  8 delayed
-- KEYS  9 leased
-- KEYS  10 dead
-- KEYS  11 bell
-- KEYS  12 requests, first turn
-- KEYS  13 requests, second turn
-- ARGV  1 id
-- ARGV  2 ms to keep that as its result; 0: forget it at once
-- ARGV  3 line for the outcomes
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- Returns 1, also to a repeat, or 0 when it has begun, has ended, or was never there
local records, queue = records_at(KEYS), queue_at(KEYS, 7)
local now = math.floor(microseconds() / 1000)
local memory, window = {KEYS[12], KEYS[13]}, tonumber(ARGV[5])
if answer_to(ARGV[4], memory, window, now) then
  return 1
end
local id = redis.call('HGET', records.aliases, 'a' .. ARGV[1]) or ARGV[1]
local text = redis.call('HGET', records.states, id)
local state = text and state_of(text)
if not state or (state.status ~= 'w' and not (state.status == 'd' and ARGV[2] == '0')) then
  return 0
end
local gone = redis.call('ZREM', queue.ready, id) + redis.call('ZREM', queue.delayed, id)
if state.status == 'd' then
  gone = redis.call('ZREM', queue.dead, id)
end
if gone == 0 then
  return 0
end
noted(records, id, ARGV[3])
ended(records, id, state, 'c', now, tonumber(ARGV[2]))
memorized(ARGV[4], '1', memory, window, now)
return 1
