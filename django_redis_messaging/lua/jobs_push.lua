-- Adds jobs to a queue, in their order.
--
-- uses _requests.lua
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 uniques
-- KEYS  5 aliases
-- KEYS  6 requests, first turn
-- KEYS  7 requests, second turn
-- KEYS  8 ready
-- KEYS  9 delayed
-- KEYS  10 leased
-- KEYS  11 dead
-- KEYS  12 bell
-- ARGV  1 request id; empty where the ids of the jobs are new ones, whose records outlive all repeats
-- ARGV  2 request window: ms
-- ARGV  3 most jobs that may wait in the queue
-- ARGV  4… jobs: id, payload, delay in ms or @ and the moment in ms, priority, most attempts, unique key
-- Returns "pushed" (ms), and for each job of a unique key, and for one alone, a NUL and the id that counts; or,
-- with nothing done, how many would wait. An id that is there already stays as it is, unless it is dead.
local FIELDS = 6
local queue = queue_at(KEYS, 8)
local us = microseconds()
local now = math.floor(us / 1000)
local memory, window = {KEYS[6], KEYS[7]}, tonumber(ARGV[2])
local before = ARGV[1] ~= '' and answer_to(ARGV[1], memory, window, now)
if before then
  return before
end
local count, most = (#ARGV - 3) / FIELDS, tonumber(ARGV[3])
local waiting = redis.call('ZCARD', queue.ready) + redis.call('ZCARD', queue.delayed) + count
for at = 4, waiting > most and #ARGV or 0, FIELDS do
  -- what stays as it is takes no more room
  local known = redis.call('HGET', KEYS[2], ARGV[at])
  if known and (ARGV[1] == '' or string.sub(known, 1, 1) ~= 'd') then
    waiting = waiting - 1
  end
end
if waiting > most then
  return waiting
end

-- The job that has this key, where there is one.
local function winner(unique)
  local id = redis.call('HGET', KEYS[4], unique)
  return id and redis.call('HEXISTS', KEYS[2], id) == 1 and id
end

-- An id that was given out stands for the job that counts.
local function stands_for(id, job)
  if redis.call('HGET', KEYS[5], 'a' .. id) == job then
    return
  end
  local others = redis.call('HGET', KEYS[5], 'j' .. job)
  redis.call('HSET', KEYS[5], 'a' .. id, job, 'j' .. job, others and others .. ' ' .. id or id)
end

local ids, priorities, answers = {}, {}, {digits(now)}
for at = 4, #ARGV, FIELDS do
  local id, payload, wait, priority, most, unique = unpack(ARGV, at, at + FIELDS - 1)
  local known = redis.call('HGET', KEYS[2], id)
  local repeated = known and ARGV[1] == ''
  local other = unique ~= '' and not repeated and winner(unique)
  if repeated then
    answers[1] = state_of(known).pushed
  elseif other then
    stands_for(id, other)
  else
    local dead = known and string.sub(known, 1, 1) == 'd'
    if not known or dead then
      local moment = string.match(wait, '^@(%d+)$')
      -- rounded up: never early, not by a part of a ms
      local due = moment and tonumber(moment) or wait == '0' and 0 or math.ceil(us / 1000) + tonumber(wait)
      local state = {
        status = 'w', priority = priority, attempts = 0, most = most, fence = 0, token = '-',
        pushed = digits(now), first = 0, last = 0, moment = digits(math.max(due, now)), workers = '-',
        unique = unique,
      }
      redis.call('HSET', KEYS[1], id, payload)
      redis.call('HSET', KEYS[2], id, text_of(state))
      if unique ~= '' then
        redis.call('HSET', KEYS[4], unique, id)
      end
      if dead then
        redis.call('ZREM', queue.dead, id)
        redis.call('HDEL', KEYS[3], id)
      end
      if due > now then
        queued(queue, id, priority, due, now)
      else
        ids[#ids + 1], priorities[#priorities + 1] = id, priority
      end
    end
  end
  if unique ~= '' or count == 1 then
    answers[#answers + 1] = other or id
  end
end
if #ids > 0 then
  made_ready(queue, ids, priorities)
  rung(queue)
end
local answer = table.concat(answers, '\0')
if ARGV[1] ~= '' then
  memorized(ARGV[1], answer, memory, window, now)
end
return answer
