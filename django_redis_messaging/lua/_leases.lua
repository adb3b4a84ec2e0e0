-- Leases: settled by their holders, or requeued when they expire. `dead_limits` is {count = …, age = …}: how
-- many dead jobs a queue keeps, and for how long (ms).
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _time.lua

-- Jobs that one call requeues, or promotes.
local MAX_REQUEUED = 100
local MAX_PROMOTED = 500

local function move_to_dead(queue, records, id, state, now, dead_limits)
  release_unique(records, id, state.unique)
  state.status, state.moment, state.token = 'd', digits(now), '-'
  write_state(records, id, state)
  redis.call('ZADD', queue.dead, digits(now), id)
  delete_expired(records, queue.dead, digits(now - dead_limits.age), 2)
  -- of jobs that died in the same ms, no more than are over the limit
  local over = redis.call('ZCARD', queue.dead) - dead_limits.count
  if over > 0 then
    local oldest = redis.call('ZRANGE', queue.dead, 0, 0, 'WITHSCORES')
    delete_expired(records, queue.dead, oldest[2], math.min(over, 2))
  end
end

-- Requeues a job for its next attempt, or moves it to the dead jobs after its last one.
local function requeue(queue, records, id, state, due, now, dead_limits)
  if state.attempts >= state.max_attempts then
    move_to_dead(queue, records, id, state, now, dead_limits)
    return
  end
  state.status, state.moment, state.token = 'w', digits(math.max(due, now)), '-'
  write_state(records, id, state)
  enqueue(queue, id, state.priority, due, now)
end

-- Settles a lease {id, fence, token} with an outcome {kind, ms, line}. The kind is done, retry, release (the
-- attempt doesn't count) or dead; ms is how long to keep the result, or to delay the next attempt. Returns 1,
-- or 0 if the lease is stale.
local function settle(queue, records, lease, outcome, now, dead_limits)
  local id = lease.id
  local state = leased_state(records, id, lease.fence, lease.token)
  -- First a removal, which Redis never refuses: when memory is full, the writes after it are allowed too.
  if redis.call('ZREM', queue.leased, state and id or '') == 0 then
    return 0
  end
  append_log(records, id, outcome.line)
  if outcome.kind == 'done' then
    finish_job(records, id, state, 's', now, outcome.ms)
  elseif outcome.kind == 'dead' then
    move_to_dead(queue, records, id, state, now, dead_limits)
  else
    if outcome.kind == 'release' then
      uncount_attempt(state)
    end
    -- a part of the current ms has passed: without one more, a delayed job would be early
    local due = outcome.ms > 0 and now + outcome.ms + 1 or now
    requeue(queue, records, id, state, due, now, dead_limits)
  end
  return 1
end

local function requeue_expired(queue, records, now, dead_limits)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue.leased, '-inf', digits(now), 'LIMIT', 0, MAX_REQUEUED)) do
    local state = read_state(records, id)
    if state then
      append_log(records, id, 'L' .. state.attempts)
      requeue(queue, records, id, state, now, now, dead_limits)
    end
    redis.call('ZREM', queue.leased, id)
  end
end

-- Makes due jobs ready, the earliest first.
local function promote_due(queue, records, now)
  local due = redis.call('ZRANGEBYSCORE', queue.delayed, '-inf', digits(now), 'LIMIT', 0, MAX_PROMOTED)
  if #due == 0 then
    return
  end
  local ids, priorities = {}, {}
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(due))) do
    if text then
      ids[#ids + 1] = due[at]
      priorities[#priorities + 1] = string.match(text, '^%a (%S+)')
    end
  end
  if #ids > 0 then
    append_ready(queue, ids, priorities)
  end
  redis.call('ZREM', queue.delayed, unpack(due))
end

-- Does what is due by time. Returns when the next delayed job is due and when the next lease ends (ms, or nil).
local function sweep(queue, records, now, dead_limits)
  local leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  if leased[2] and tonumber(leased[2]) <= now then
    requeue_expired(queue, records, now, dead_limits)
    leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  end
  local delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  if delayed[2] and tonumber(delayed[2]) <= now then
    promote_due(queue, records, now)
    delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  end
  return tonumber(delayed[2]), tonumber(leased[2])
end
