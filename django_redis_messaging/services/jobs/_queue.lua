-- A queue: its keys follow the records in the KEYS of a script, in the order of QueueKeys.all in
-- services/jobs/keys.py. The score of a ready job is its place: each priority has a band of 2^45 places, the highest
-- priority first; within a band, jobs are in the order in which they became ready. Places grow with the time, so that
-- also a job that leaves the ready ones for a while, see _waiting.lua, is in its order when it comes back.
--
-- uses _records.lua
-- uses common/_time.lua
local BAND = 2 ^ 45
local PLACES_PER_MS = 8 -- a band lasts until the year 2109
-- Jobs that one script promotes, in all queues together.
local promotions_left = 500

-- A member of `delayed` that is no job: jobs of the queue may get tokens of rates at its score, see _waiting.lua.
local MARKER = '\0tokens'

-- The queue of this number, from 1.
local function queue_at(keys, number)
  local at = 9 + 6 * number
  return {
    ready = keys[at], delayed = keys[at + 1], leased = keys[at + 2], dead = keys[at + 3], bell = keys[at + 4],
    parked = keys[at + 5],
  }
end

-- All queues, of a script that has no other keys behind the records.
local function queues_at(keys)
  local queues = {}
  for number = 1, (#keys - 14) / 6 do
    queues[number] = queue_at(keys, number)
  end
  return queues
end

-- The lowest place of the band behind that of a place.
local function next_band(place)
  return digits((math.floor(tonumber(place) / BAND) + 1) * BAND)
end

-- Wakes one waiting worker.
local function ring_bell(queue)
  redis.call('ZADD', queue.bell, '0', 'look')
end

-- The last place of a band that begins at `low`, of a queue with jobs behind it.
-- rare
local function last_within(queue, low)
  local last = redis.call('ZREVRANGEBYSCORE', queue.ready, '(' .. digits(low + BAND), digits(low), 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(last[2])
end

-- The last place in the band of a priority that is taken; or that of the ms `now`, if it is higher.
local function last_place(queue, priority, now)
  local low = (100 - priority) * BAND
  local last = tonumber(redis.call('ZREVRANGE', queue.ready, '0', '0', 'WITHSCORES')[2])
  if last and last >= low + BAND then
    last = last_within(queue, low)
  end
  return math.max(last or 0, low + PLACES_PER_MS * now)
end

-- Appends jobs to the bands of their priorities.
local function append_ready(queue, ids, priorities, now)
  local ends, members = {}, {}
  for at, id in ipairs(ids) do
    local priority = priorities[at]
    local place = (ends[priority] or last_place(queue, priority, now)) + 1
    ends[priority] = place
    members[2 * at - 1], members[2 * at] = digits(place), id
  end
  redis.call('ZADD', queue.ready, unpack(members))
end

-- Makes due jobs ready, the earliest first.
-- rare
local function promote_due(queue, records, now)
  local page = digits(promotions_left)
  local due = redis.call('ZRANGEBYSCORE', queue.delayed, '-inf', digits(now), 'LIMIT', '0', page)
  if #due == 0 then
    return
  end
  promotions_left = promotions_left - #due
  local ids, priorities = {}, {}
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(due))) do
    if due[at] == MARKER then
      due[at] = '' -- it stays: a sweep handles it
    elseif text then
      ids[#ids + 1] = due[at]
      priorities[#priorities + 1] = priority_of(text)
    end
  end
  if #ids > 0 then
    append_ready(queue, ids, priorities, now)
  end
  redis.call('ZREM', queue.delayed, unpack(due))
end

-- Delays a job until the ms `due`. Wakes a worker if no job is due before.
local function delay_until(queue, id, due)
  local head = redis.call('ZRANGE', queue.delayed, '0', '0', 'WITHSCORES')
  redis.call('ZADD', queue.delayed, due, id)
  if not head[2] or due < tonumber(head[2]) then
    ring_bell(queue)
  end
end

-- Makes a job ready, behind those that became due before, and wakes a worker; or delays it until the ms `due`.
local function enqueue(queue, records, id, priority, due, now)
  if due > now then
    delay_until(queue, id, due)
  else
    promote_due(queue, records, now)
    append_ready(queue, {id}, {priority}, now)
    ring_bell(queue)
  end
end

-- How many jobs are ready or delayed.
local function count_waiting(queue)
  return redis.call('ZCARD', queue.ready) + redis.call('ZCARD', queue.delayed)
end

-- Takes a job out of the queue that is ready or delayed; returns 0 if it was neither.
local function remove_waiting(queue, id)
  return redis.call('ZREM', queue.ready, id) + redis.call('ZREM', queue.delayed, id)
end

-- The due time, in ms: `delay` is a number of ms, or @ and a moment in ms. Rounded up: never early, not even
-- by a part of a ms.
local function due_after(delay, us)
  if delay == '0' then
    return math.floor(us / 1000)
  end
  local moment = string.match(delay, '^@(%d+)$')
  return tonumber(moment) or math.ceil(us / 1000) + delay
end
