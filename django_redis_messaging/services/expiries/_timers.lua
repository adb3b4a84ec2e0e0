-- Timers that have not started. Until then the unique key of a timer's job is the timer's name, and a change
-- takes the job from wherever it is, even from a listener that has claimed but not started it.
--
-- The KEYS of their scripts are the records of the jobs, the queue of the namespace, the timer's real key, and the
-- namespaces (with_timer in services/expiries/timers.py).
--
-- uses common/_time.lua
-- uses common/_writes.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua

-- Returns the records, the queue, the real key, and the key of the namespaces.
local function timer_at(keys)
  return records_at(keys), queue_at(keys, 1), keys[23], keys[24]
end

-- Reads the keys that a change of a timer writes: a key of another type fails before the first write.
local function check_timer(records, queue, ...)
  check_types('HLEN', records.jobs, records.states, records.outcomes)
  check_types('ZCARD', queue.ready, queue.delayed, queue.leased, queue.bell, ...)
end

-- The id and state of a timer that has not started, or nil. `expected`: the id that it must have; empty: any.
local function find_timer(records, unique, expected)
  local id = redis.call('HGET', records.uniques, unique)
  local state = id and (expected == '' or expected == id) and read_state(records, id)
  if state then
    return id, state
  end
end

-- Takes a timer's job out of the queue, or from its lease; returns 0 if it was in neither.
local function remove_timer(queue, id)
  return redis.call('ZREM', queue.ready, id) + redis.call('ZREM', queue.delayed, id) + redis.call('ZREM', queue.leased, id)
end

-- When a timer is due (ms), never early; and the last ms, as text, at which its real key exists.
local function timer_due(us, after)
  local due = math.ceil(us / 1000) + after
  return due, digits(due - 1)
end
