-- A queue: its keys follow the records in the KEYS of a script, in the order of QueueKeys.all in
-- services/jobs/keys.py. The score of a ready job is its place, see _places.lua.
--
-- uses _places.lua
-- uses _records.lua
-- uses common/_time.lua

-- Jobs that one script promotes, in all queues together.
local promotions_left = 500

-- A member of `delayed` that is no job: jobs of the queue may get tokens of rates at its score, see _waiting.lua.
local MARKER = '\0tokens'

-- The queue of this number, from 1.
local function queue_at(keys, number)
  local at = 9 + 7 * number
  return {
    ready = keys[at], delayed = keys[at + 1], leased = keys[at + 2], dead = keys[at + 3], bell = keys[at + 4],
    parked = keys[at + 5], groups = keys[at + 6],
  }
end

-- A queue of the same slot that is not in the KEYS of the script, by the beginning of its keys.
local function queue_named(tag)
  return {
    ready = tag .. ':ready', delayed = tag .. ':delayed', leased = tag .. ':leased', dead = tag .. ':dead',
    bell = tag .. ':bell', parked = tag .. ':parked', groups = tag .. ':groups',
  }
end

-- All queues, of a script that has no other keys behind the records.
local function queues_at(keys)
  local queues = {}
  for number = 1, (#keys - 15) / 7 do
    queues[number] = queue_at(keys, number)
  end
  return queues
end

-- Wakes one waiting worker.
local function ring_bell(queue)
  redis.call('ZADD', queue.bell, '0', 'look')
end

-- Makes jobs ready, in this order. `texts`: of each its state, or its fields that never change.
local function append_ready(queue, ids, priorities, texts)
  local bands, members = {}, {}
  for at, id in ipairs(ids) do
    local priority = priorities[at]
    local band = bands[priority] or band_of(queue, priority)
    bands[priority] = band
    members[2 * at - 1], members[2 * at] = digits(take_place(queue, band, texts[at])), id
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
  local ids, priorities, texts = {}, {}, {}
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(due))) do
    if due[at] == MARKER then
      due[at] = '' -- it stays: a sweep handles it
    elseif text then
      ids[#ids + 1] = due[at]
      priorities[#priorities + 1] = priority_of(text)
      texts[#texts + 1] = text
    end
  end
  if #ids > 0 then
    append_ready(queue, ids, priorities, texts)
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

-- Makes a job ready, behind those that became due before, and wakes a worker; or delays it until the ms `due`. `more`: its
-- fields that never change.
local function enqueue(queue, records, id, priority, due, now, more)
  if due > now then
    delay_until(queue, id, due)
  else
    promote_due(queue, records, now)
    append_ready(queue, {id}, {priority}, {more})
    ring_bell(queue)
  end
end

-- How many jobs are ready or delayed.
local function count_waiting(queue)
  return redis.call('ZCARD', queue.ready) + redis.call('ZCARD', queue.delayed)
end

-- Takes a job out of the queue that is ready or delayed; returns 0 if it was neither.
local function remove_waiting(queue, id, state)
  if redis.call('ZREM', queue.ready, id) == 0 then
    return redis.call('ZREM', queue.delayed, id)
  end
  leave_group(queue, state)
  forget_groups(queue)
  return 1
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
