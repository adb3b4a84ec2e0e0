-- A queue's keys: ready, delayed, leased, dead, bell. A place in the line is a number: a band of 2^45 for
-- each priority, the highest first; in a band, in the order of becoming ready.
local BAND = 2 ^ 45

local function queue_at(keys, at)
  return {ready = keys[at], delayed = keys[at + 1], leased = keys[at + 2], dead = keys[at + 3], bell = keys[at + 4]}
end

-- Puts jobs at the end of their priority's line: `ids`, and the priority of each.
local function made_ready(queue, ids, priorities)
  local ends, members = {}, {}
  for at, id in ipairs(ids) do
    local priority = tonumber(priorities[at])
    if not ends[priority] then
      local low = (100 - priority) * BAND
      local last = redis.call('ZREVRANGEBYSCORE', queue.ready, '(' .. digits(low + BAND), digits(low), 'WITHSCORES', 'LIMIT', 0, 1)
      ends[priority] = last[2] and tonumber(last[2]) or low - 1
    end
    ends[priority] = ends[priority] + 1
    members[#members + 1] = digits(ends[priority])
    members[#members + 1] = id
  end
  redis.call('ZADD', queue.ready, unpack(members))
end

-- Wakes one of those who wait.
local function rung(queue)
  redis.call('ZADD', queue.bell, 0, 'look')
end

-- Puts a job where it waits: in the line, or aside until it is due; wakes somebody where that matters.
local function queued(queue, id, priority, due, now)
  if due > now then
    local head = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
    redis.call('ZADD', queue.delayed, digits(due), id)
    if not head[2] or due < tonumber(head[2]) then
      rung(queue)
    end
  else
    made_ready(queue, {id}, {priority})
    rung(queue)
  end
end
