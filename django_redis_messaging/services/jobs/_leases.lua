-- Leases: settled by their holders, or requeued when they expire.
--
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses common/_time.lua

-- Jobs that one script requeues because their leases have expired, in all queues together.
local requeues_left = 100

-- The limits of a slot, from their text "dead age lost results result_ttl":
-- dead        dead jobs that a queue keeps at most
-- age         ms after which a dead job is removed
-- lost        expired leases at which a job is dead; 0: expired leases count as failures
-- results     results that are kept at most
-- result_ttl  ms for which the result of a dead job is kept at least
local function parse_limits(text)
  local dead, age, lost, results, result_ttl = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {
    dead = tonumber(dead), age = tonumber(age), lost = tonumber(lost), results = tonumber(results),
    result_ttl = tonumber(result_ttl),
  }
end

local function move_to_dead(queue, records, id, state, now, limits)
  release_unique(records, id, state.unique)
  wake_waiters(records, id, state)
  state.status, state.moment, state.token = 'd', digits(now), '-'
  write_state(records, id, state)
  redis.call('ZADD', queue.dead, digits(now), id)
  remove_dead(queue, records, digits(now - limits.age), 2, now, limits)
  -- of jobs that died in the same ms, no more than are over the limit
  local over = redis.call('ZCARD', queue.dead) - limits.dead
  if over > 0 then
    remove_dead(queue, records, '+inf', math.min(over, 2), now, limits)
  end
end

-- Requeues a job for its next attempt, or moves it to the dead jobs after its last one.
local function requeue(queue, records, id, state, due, now, limits)
  if not has_attempts_left(state, limits.lost) then
    move_to_dead(queue, records, id, state, now, limits)
    return
  end
  state.status, state.moment, state.token = 'w', digits(math.max(due, now)), '-'
  write_state(records, id, state)
  enqueue(queue, records, id, state.priority, due, now)
end

-- Settles a lease {id, fence, token} with an outcome {kind, ms, line}. The kind is done, retry, release (the
-- attempt doesn't count) or dead; ms is how long to keep the result, or to delay the next attempt. Returns 1,
-- or 0 if the lease is stale.
local function settle(queue, records, lease, outcome, now, limits)
  local id = lease.id
  local state = leased_state(records, id, lease.fence, lease.token)
  -- First a removal, which Redis never refuses: when memory is full, the writes after it are allowed too.
  if redis.call('ZREM', queue.leased, state and id or '') == 0 then
    return 0
  end
  if outcome.kind == 'done' then
    finish_job(records, id, state, 's', outcome.line, outcome.ms, now, limits)
    return 1
  end
  append_log(records, id, outcome.line)
  if outcome.kind == 'dead' then
    move_to_dead(queue, records, id, state, now, limits)
  else
    if outcome.kind == 'release' then
      uncount_attempt(state)
    end
    -- a part of the current ms has passed: without one more, a delayed job would be early
    local due = outcome.ms > 0 and now + outcome.ms + 1 or now
    requeue(queue, records, id, state, due, now, limits)
  end
  return 1
end

local function requeue_expired(queue, records, now, limits)
  local expired = redis.call('ZRANGEBYSCORE', queue.leased, '-inf', digits(now), 'LIMIT', 0, requeues_left)
  requeues_left = requeues_left - #expired
  for _, id in ipairs(expired) do
    local state = read_state(records, id)
    if state then
      if state.status == 'r' then
        append_log(records, id, 'L' .. state.attempts)
      end
      count_expired(state, limits.lost)
      requeue(queue, records, id, state, now, now, limits)
    end
    redis.call('ZREM', queue.leased, id)
  end
end

-- Does what is due by time. Returns when the next delayed job is due and when the next lease ends (ms, or nil).
local function sweep(queue, records, now, limits)
  local leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  if leased[2] and tonumber(leased[2]) <= now then
    requeue_expired(queue, records, now, limits)
    leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  end
  local delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  if delayed[2] and tonumber(delayed[2]) <= now then
    promote_due(queue, records, now)
    delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  end
  return tonumber(delayed[2]), tonumber(leased[2])
end
