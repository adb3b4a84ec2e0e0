-- Puts dead jobs back into the line, with all their attempts before them: some of all, page by page, or
-- those with certain ids.
--
-- uses _requests.lua
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
--
-- KEYS  1 states
-- KEYS  2 uniques
-- KEYS  3 ready
-- KEYS  4 delayed
-- KEYS  5 leased
-- KEYS  6 dead
-- KEYS  7 bell
-- KEYS  8 requests, first turn
-- KEYS  9 requests, second turn
-- ARGV  1 age at which a dead job is forgotten: ms
-- ARGV  2 how many are looked at, where no ids are given: the oldest
-- ARGV  3 where the page before ended; empty for the first one
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- ARGV  6… ids
-- Returns how many were put back, and where the next page begins, or nothing after the last. A job whose unique
-- key another one has meanwhile stays dead.
local queue = queue_at(KEYS, 3)
local now = math.floor(microseconds() / 1000)
local since = now - ARGV[1]
local ids = {unpack(ARGV, 6)}
local memory, window = {KEYS[8], KEYS[9]}, tonumber(ARGV[5])
local before = answer_to(ARGV[4], memory, window, now)
if before then
  local count, rest = string.match(before, '^(%d+) (.*)$')
  return {tonumber(count), rest}
end

local function put_back(id)
  local text = redis.call('HGET', KEYS[1], id)
  local state = text and state_of(text)
  if not state or state.status ~= 'd' or tonumber(state.moment) <= since then
    return false
  end
  if state.unique ~= '' and redis.call('HSETNX', KEYS[2], state.unique, id) == 0 then
    return false
  end
  state.status, state.attempts, state.moment = 'w', 0, digits(now)
  redis.call('HSET', KEYS[1], id, text_of(state))
  queued(queue, id, state.priority, now, now)
  redis.call('ZREM', queue.dead, id)
  return true
end

-- A repeat is answered as the first time.
local function answered(count, rest)
  if count > 0 then
    memorized(ARGV[4], count .. ' ' .. rest, memory, window, now)
  end
  return {count, rest}
end

local count, rest = 0, ''
if #ids > 0 then
  for _, id in ipairs(ids) do
    count = count + (put_back(id) and 1 or 0)
  end
  return answered(count, rest)
end
-- A page goes on behind the last job that stayed. It takes none that was buried after the first page, so that
-- what dies again meanwhile is not put back for ever.
local till, moment, last = string.match(ARGV[3], '^(%d+) (%-?%d+) (.*)$')
till, moment, last = tonumber(till or now), moment or digits(since), last or ''
local rank = last ~= '' and redis.call('ZSCORE', queue.dead, last) == moment and redis.call('ZRANK', queue.dead, last)
local from = rank and rank + 1 or redis.call('ZCOUNT', queue.dead, '-inf', moment)
local page = redis.call('ZRANGE', queue.dead, from, from + ARGV[2] - 1, 'WITHSCORES')
for at = 1, #page, 2 do
  if tonumber(page[at + 1]) > till then
    return answered(count, '')
  end
  if put_back(page[at]) then
    count = count + 1
  else
    last, moment = page[at], page[at + 1]
  end
end
if #page == 2 * ARGV[2] then
  rest = digits(till) .. ' ' .. moment .. ' ' .. last
end
return answered(count, rest)
