-- Settles jobs that were done, does what is due by time, and leases the next jobs.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _leases.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7… queues by turns: ready, delayed, leased, dead, bell; the first is served first
-- ARGV  1 token of the new leases
-- ARGV  2 worker, or -
-- ARGV  3 lease: ms; 0 gives the jobs away at once
-- ARGV  4 jobs wanted
-- ARGV  5 age they must have: ms
-- ARGV  6 most dead jobs that a queue keeps
-- ARGV  7 age at which a dead job is forgotten: ms
-- ARGV  8… jobs to settle: queue (1, 2 …), id, fence, token, verdict, value, line
-- Returns the server's clock (ms), the ms until something is due or -1, what became of each settled job (1,
-- or 0 when stale), and for each job: queue, id, payload, state
local SETTLED = 7
local records, limits = records_at(KEYS), grave(ARGV[6], ARGV[7])
local token, worker, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local us = microseconds()
local now = math.floor(us / 1000)
local queues = {}
for at = 7, #KEYS, 5 do
  queues[#queues + 1] = queue_at(KEYS, at)
end
-- We look now. It is also a first write that is never refused, so that all others pass without memory.
redis.call('DEL', queues[1].bell)

local reply = {now, -1}
for at = 8, #ARGV, SETTLED do
  local number, id, fence, before, verdict, value, line = unpack(ARGV, at, at + SETTLED - 1)
  reply[#reply + 1] = settled(queues[tonumber(number)], records, id, fence, before, verdict, value, line, now, limits)
end

-- Up to `count` ids from the head of the line.
local function first_ones(queue, count)
  local ids = {}
  for at, item in ipairs(redis.call('ZPOPMIN', queue.ready, count)) do
    if at % 2 == 1 then
      ids[#ids + 1] = item
    end
  end
  return ids
end

-- Up to `count` ids that became due before the ms `moment`. In a priority's line the earlier ones come first,
-- so a head that is too young ends its line, and the next line's head is looked at. Also returns when the
-- first of those became due.
local function old_ones(queue, count, moment)
  local ids, from, youngest = {}, '-inf', nil
  while #ids < count do
    local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then
      break
    end
    local text = redis.call('HGET', records.states, head[1])
    local due = text and tonumber(state_of(text).moment) or 0
    if due < moment then -- not the same ms: only parts of the first and the last one have gone
      redis.call('ZREM', queue.ready, head[1])
      ids[#ids + 1] = head[1]
    else
      youngest = math.min(youngest or due, due)
      from = digits((math.floor(tonumber(head[2]) / BAND) + 1) * BAND)
    end
  end
  return ids, youngest
end

local function leased(queue, id, payload, state)
  if lease == 0 then
    released(records, id, state.unique)
    forgotten(records, id, state.unique)
    state.attempts = state.attempts + 1
    return text_of(state)
  end
  state.status = 'r'
  state.attempts = state.attempts + 1
  state.fence = digits(math.max(tonumber(state.fence) + 1, us))
  state.token = token
  state.last = digits(now)
  state.first = state.first == '0' and state.last or state.first
  if worker ~= '-' then
    state.workers = state.workers == '-' and worker or state.workers .. ',' .. worker
  end
  local text = text_of(state)
  redis.call('HSET', records.states, id, text)
  redis.call('ZADD', queue.leased, digits(now + lease), id)
  return text
end

local wanted, age = tonumber(ARGV[4]), tonumber(ARGV[5])
local taken, soonest = 0, nil
for number, queue in ipairs(queues) do
  if taken == wanted and wanted > 0 then
    break
  end
  if number > 1 then
    redis.call('DEL', queue.bell)
  end
  local due, ends = swept(queue, records, now, limits)
  local ids, young = {}, nil
  if age > 0 then
    ids, young = old_ones(queue, wanted - taken, now - age)
  elseif wanted > 0 then
    ids = first_ones(queue, wanted - taken)
  end
  if #ids > 0 then
    local payloads = redis.call('HMGET', records.jobs, unpack(ids))
    for at, text in ipairs(redis.call('HMGET', records.states, unpack(ids))) do
      if text and payloads[at] then
        taken = taken + 1
        text = leased(queue, ids[at], payloads[at], state_of(text))
        reply[#reply + 1] = number
        reply[#reply + 1] = ids[at]
        reply[#reply + 1] = payloads[at]
        reply[#reply + 1] = text
      end
    end
  end
  -- Others who wait must know of what is left; and, as we may be busy now, of what is due soon.
  if (taken == wanted and redis.call('EXISTS', queue.ready) == 1) or (taken > 0 and due and due < now + 1000) then
    rung(queue)
  end
  for _, moment in pairs({due or false, ends or false, young and young + age + 1 or false}) do
    soonest = moment and math.min(soonest or moment, moment) or soonest
  end
end
if wanted == 0 then
  expired(records, records.finished, digits(now), 100)
end
reply[2] = soonest and math.max(soonest - now, 0) or -1
return reply
