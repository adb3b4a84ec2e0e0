-- Timers that have not begun. Until then the unique key of a timer's job is its name; whatever is done to
-- it takes the job from wherever it is, also from a listener that has claimed it and not begun.

-- Checks the keys that a change of a timer may write.
local function check_timer(records, queue, ...)
  check_types('HLEN', records.jobs, records.states, records.outcomes)
  check_types('ZCARD', queue.ready, queue.delayed, queue.leased, queue.bell, ...)
end

local function waiting_timer(records, unique)
  local id = redis.call('HGET', records.uniques, unique)
  local text = id and redis.call('HGET', records.states, id)
  if text then
    return id, state_of(text)
  end
end

local function taken_out(queue, id)
  return redis.call('ZREM', queue.delayed, id) + redis.call('ZREM', queue.ready, id) + redis.call('ZREM', queue.leased, id)
end

-- The ms that is `wait` ms from the µs `us`, never early; and the last ms at which the real key is there.
local function due_after(us, wait)
  local due = math.ceil(us / 1000) + wait
  return due, digits(due - 1)
end
