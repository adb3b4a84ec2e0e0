-- Adds jobs to a queue, in the given order.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _waiting.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 request id; empty if the ids of the jobs are new, and their records outlive all repeats
-- ARGV  2 request window: ms
-- ARGV  3 offset of the request windows: ms
-- ARGV  4 limit of waiting jobs in the queue
-- ARGV  5 ids that may stand for one job: those of pushes with a unique key in use; 0 if the ids were not given out
-- ARGV  6… jobs: id, payload, delay (ms, or @ and a moment in ms), priority, max attempts, unique key, and the other
--         fields that never change, as text: see _records.lua
-- Returns "pushed" (ms), and a NUL and an id for each job with a unique key, and for a single job: the id of the
-- job in force. If the limit is exceeded: the number of jobs that would wait, with nothing done. A job whose id
-- exists stays as it is, unless it is dead: then it is replaced. A waiting job whose unique key is pushed with the field
-- `replace` gets the payload and the other fields, and waits anew.
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local requests = requests_at(KEYS, tonumber(ARGV[3]))
local request, window = ARGV[1], tonumber(ARGV[2])
local max_waiting, max_aliases = tonumber(ARGV[4]), tonumber(ARGV[5])
local FIRST, FIELDS = 6, 7
local count = (#ARGV - FIRST + 1) / FIELDS
local us = microseconds()
local now = math.floor(us / 1000)
local before = request ~= '' and find_answer(request, requests, window, now)
if before then
  return before
end

-- A job that stays as it is takes no more room.
local delayed = redis.call('ZCARD', queue.delayed)
local waiting = redis.call('ZCARD', queue.ready) + delayed + redis.call('ZCARD', queue.parked) + count
for at = FIRST, waiting > max_waiting and #ARGV or 0, FIELDS do
  local stored = redis.call('HGET', records.states, ARGV[at])
  local unique = ARGV[at + FIELDS - 2]
  local more = ARGV[at + FIELDS - 1]
  if stored and (request == '' or status_of(stored) ~= 'dead') or (unique ~= '' and unique_holder(records, unique, more)) then
    waiting = waiting - 1
  end
end
if waiting > max_waiting then
  return waiting
end

local ready, priorities, texts = {}, {}, {}
local pushed, in_force = digits(now), ''
for at = FIRST, #ARGV, FIELDS do
  local id, payload, delay, priority, max_attempts, unique, more = unpack(ARGV, at, at + FIELDS - 1)
  local stored = redis.call('HGET', records.states, id)
  local repeated = stored and request == ''
  local holder = unique ~= '' and not repeated and holder_for(records, id, unique, more, max_aliases)
  if repeated then
    pushed = pushed_at(stored)
  elseif holder and replaces(more) then
    local due = math.max(due_after(delay, us), now)
    replace_job(queue, records, holder, payload, due, now, priority, max_attempts, more)
  elseif not holder and (not stored or status_of(stored) == 'dead') then
    local due = math.max(due_after(delay, us), now)
    add_job(records, id, payload, now, due, priority, max_attempts, unique, more)
    if stored then -- it was dead
      redis.call('ZREM', queue.dead, id)
      redis.call('ZREM', records.finished, id)
      redis.call('HDEL', records.outcomes, id)
    end
    if due > now then
      delay_until(queue, id, due)
    else
      ready[#ready + 1], priorities[#priorities + 1], texts[#texts + 1] = id, priority, more
    end
  end
  if unique ~= '' or count == 1 then
    in_force = in_force .. '\0' .. (holder or id)
  end
end
if #ready > 0 then
  if delayed > 0 then
    promote_due(queue, records, now) -- these became due before
  end
  append_ready(queue, ready, priorities, texts)
  ring_bell(queue)
end
local answer = pushed .. in_force
if request ~= '' then
  record_answer(request, answer, requests, window, now)
end
return answer
