-- Leases: settled by their holders, or requeued when they expire.
--
-- uses _batches.lua
-- uses _places.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _tags.lua
-- uses _waiting.lua
-- uses common/_time.lua

-- Jobs that one script requeues because their leases have expired, in all queues together.
local requeues_left = 100

-- The limits of a slot: the five arguments of a script from `at` on, as Engine._limits in services/jobs/engine.py has
-- them:
-- max_dead     dead jobs that a queue keeps at most
-- dead_ttl     ms after which a dead job is removed
-- max_lost     expired leases at which a job is dead; 0: expired leases count as failures
-- max_results  results that are kept at most
-- result_ttl   ms for which the result of a dead job is kept at least
-- They are texts: tonumber is slow, and most calls need none of them.
local function limits_at(args, at)
  return {
    max_dead = args[at], dead_ttl = args[at + 1], max_lost = args[at + 2], max_results = args[at + 3],
    result_ttl = args[at + 4],
  }
end

local function move_to_dead(queue, records, id, state, now, limits)
  release_unique(records, id, state.unique)
  remove_tags(records, id, state.more)
  wake_waiters(records, id, state)
  count_end(records, state, 'dead', now)
  state.status, state.moment, state.token, state.cancel = 'dead', digits(now), '-', '-'
  write_state(records, id, state)
  redis.call('ZADD', queue.dead, digits(now), id)
  remove_dead(queue, records, digits(now - limits.dead_ttl), 2, now, limits)
  -- of jobs that died in the same ms, no more than are over the limit
  local over = redis.call('ZCARD', queue.dead) - limits.max_dead
  if over > 0 then
    remove_dead(queue, records, '+inf', math.min(over, 2), now, limits)
  end
end

-- Requeues a job for its next attempt, at the ms `due`; without `due`, it keeps its place in the queue. After its last one
-- it is moved to the dead jobs. A job that shall be cancelled ends, and one whose unique key a newer job has taken over: it
-- must not run after that.
local function requeue(queue, records, id, state, due, now, limits)
  if state.cancel ~= '-' then
    finish_job(records, id, state, 'cancelled', 'C', tonumber(state.cancel), now, limits)
    return
  elseif not has_attempts_left(state, tonumber(limits.max_lost)) then
    move_to_dead(queue, records, id, state, now, limits)
    return
  elseif is_superseded(records, id, state) then
    finish_job(records, id, state, 'cancelled', 'S', tonumber(limits.result_ttl), now, limits)
    return
  end
  state.status, state.token = 'waiting', '-'
  if due then
    state.moment, state.place = digits(math.max(due, now)), '0'
    write_state(records, id, state)
    enqueue(queue, records, id, state.priority, due, now, state.more)
  else
    put_back(records, queue, id, state)
  end
end

-- Settles a lease as anything but done or cancelled.
-- rare
local function settle_unfinished(queue, records, id, state, outcome, ms, line, now, limits)
  append_log(records, id, line)
  if outcome == 'dead' then
    move_to_dead(queue, records, id, state, now, limits)
    return
  end
  if outcome == 'lost' then
    append_log(records, id, 'L' .. state.attempts)
    count_lost(state, tonumber(limits.max_lost))
    state.apart = '1'
  elseif outcome == 'retry' then
    state.apart = '0' -- its process has survived it
  else
    uncount_attempt(state)
    state.apart = outcome == 'apart' and '1' or state.apart
  end
  -- a part of the current ms has passed: without one more, a delayed job would be early
  local due = ms > 0 and now + ms + 1 or outcome ~= 'release' and now
  requeue(queue, records, id, state, due, now, limits)
end

-- Settles a lease, identified by job, fence and token. The outcome is one of those of Outcome in engine.py; ms is how
-- long to keep the result, or to delay the next attempt; line is for the log of attempts. Returns 1, or 0 if the lease
-- is stale.
local function settle(queue, records, now, limits, id, fence, token, outcome, ms, line)
  local state = leased_state(records, id, fence, token)
  -- First a removal, which Redis never refuses: when memory is full, the writes after it are allowed too.
  if redis.call('ZREM', queue.leased, state and id or '') == 0 then
    return 0
  end
  release_needs(records, id, state)
  if outcome == 'done' then
    finish_job(records, id, state, 'succeeded', line, tonumber(ms), now, limits)
  elseif outcome == 'cancelled' then
    finish_job(records, id, state, 'cancelled', line, tonumber(ms), now, limits)
  else
    settle_unfinished(queue, records, id, state, outcome, tonumber(ms), line, now, limits)
  end
  return 1
end

-- Pushes a job that follows one that is done, unless another one has its unique key. `max_aliases`: see add_alias.
-- rare
local function push_follow_up(queue, records, us, max_aliases, id, payload, delay, priority, max_attempts, unique, more)
  local now = math.floor(us / 1000)
  local due = math.max(due_after(delay, us), now)
  local holder = unique ~= '' and holder_for(records, id, unique, more, tonumber(max_aliases))
  if holder and replaces(more) then
    replace_job(queue, records, holder, payload, due, now, priority, max_attempts, more)
  end
  if holder then
    return
  end
  add_job(records, id, payload, now, due, priority, max_attempts, unique, more)
  enqueue(queue, records, id, priority, due, now, more)
end

-- rare
local function requeue_expired(queue, records, now, limits)
  local expired = redis.call('ZRANGEBYSCORE', queue.leased, '-inf', digits(now), 'LIMIT', 0, requeues_left)
  requeues_left = requeues_left - #expired
  for _, id in ipairs(expired) do
    local state = read_state(records, id)
    if state then
      append_log(records, id, 'L' .. state.attempts)
      count_lost(state, tonumber(limits.max_lost))
      release_needs(records, id, state)
      requeue(queue, records, id, state, now, now, limits)
    end
    redis.call('ZREM', queue.leased, id)
  end
end

-- The lowest score of a ZSET of moments; infinite if it is empty.
local function first_moment(zset)
  return tonumber(redis.call('ZRANGE', zset, '0', '0', 'WITHSCORES')[2]) or math.huge
end

-- Does what is due by time. Returns when the next delayed job is due (ms).
local function sweep(queue, records, now, limits)
  if redis.call('ZCOUNT', queue.leased, '-inf', digits(now)) > 0 then
    requeue_expired(queue, records, now, limits)
  end
  local due = first_moment(queue.delayed)
  if due <= now then
    promote_for_tokens(records, queue, now)
    promote_due(queue, records, now)
    due = first_moment(queue.delayed)
  end
  return due
end

-- Takes up to `count` jobs that became due before the ms `before`. In a band the earlier ones come first, so a
-- head that is too young ends its band. Returns their ids and places, as ZPOPMIN; and when the oldest of the young ones
-- became due.
-- rare
local function take_old(queue, records, count, before)
  local popped, from, young = {}, '-inf', math.huge
  while #popped < 2 * count do
    local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then
      break
    end
    local state = read_state(records, head[1])
    local due = state and tonumber(state.moment) or 0
    if due < before then -- not the same ms: only parts of the first and the last ms have passed
      redis.call('ZREM', queue.ready, head[1])
      popped[#popped + 1], popped[#popped + 2] = head[1], head[2]
    else
      young = math.min(young, due)
      from = next_band(head[2])
    end
  end
  return popped, young
end
