-- The end of a job: the log of its attempts, its result, the clients that wait for it, and its deletion. `limits` is
-- that of _leases.lua.
--
-- uses _batches.lua
-- uses _ended.lua
-- uses _records.lua
-- uses _tags.lua
-- uses common/_time.lua

-- Jobs that one script removes because they have expired, in all queues together.
local removals_left = 100

-- Deletes all records of a job. `unique`: its unique key; empty if it has none, nil if it is not known.
local function delete_job(records, id, unique)
  redis.call('HDEL', records.jobs, id)
  redis.call('HDEL', records.states, id)
  redis.call('HDEL', records.outcomes, id)
  if unique ~= '' then
    delete_aliases(records, id)
  end
end

-- Frees the unique key of a job, if the job has it.
local function release_unique(records, id, unique)
  if unique ~= '' and redis.call('HGET', records.uniques, unique) == id then
    redis.call('HDEL', records.uniques, unique)
  end
end

-- Deletes the results that expire at the ms `from` or later, and at `till` or before: the first `count`. Returns how
-- many these are.
local function delete_results(records, from, till, count)
  local ids = redis.call('ZRANGEBYSCORE', records.finished, from, till, 'LIMIT', '0', digits(count))
  for _, id in ipairs(ids) do
    delete_job(records, id)
    redis.call('ZREM', records.finished, id)
  end
  return #ids
end

-- Deletes up to `count` results that are over the limit: those that expire first, but of tasks with a shorter TTL
-- than others only when there are no others. Returns how many these are.
-- rare
local function trim_results(records, count, now, limits)
  local over = math.min(redis.call('ZCARD', records.finished) - limits.max_results, count)
  if over <= 0 then
    return 0
  end
  local deleted = delete_results(records, digits(now + limits.result_ttl / 2), '+inf', over)
  if deleted < over then
    delete_results(records, '-inf', '+inf', over - deleted)
  end
  return over
end

-- Keeps a result until the ms `expires`. Deletes some that have expired, or are over the limit.
local function keep_result(records, id, expires, now, limits)
  redis.call('ZADD', records.finished, digits(expires), id)
  local count = redis.call('ZCARD', records.finished)
  if count % 4 == 0 then
    delete_results(records, '-inf', digits(now), 8)
  end
  if count > tonumber(limits.max_results) then
    trim_results(records, 2, now, limits)
  end
end

-- Removes the first `count` dead jobs that died at the ms `moment` or before; returns how many these are. Their
-- results are kept for as long as those of other jobs.
local function remove_dead(queue, records, moment, count, now, limits)
  local found = redis.call('ZRANGEBYSCORE', queue.dead, '-inf', moment, 'WITHSCORES', 'LIMIT', 0, count)
  for at = 1, #found, 2 do
    local id, expires = found[at], tonumber(found[at + 1]) + limits.result_ttl
    redis.call('ZREM', queue.dead, id)
    if expires > now then
      keep_result(records, id, expires, now, limits)
    else
      delete_job(records, id)
    end
  end
  return #found / 2
end

-- Removes results that have expired or are over the limit, and jobs that have been dead for too long. Returns whether
-- there may be more.
-- rare
local function remove_expired(queues, records, now, limits)
  removals_left = removals_left - delete_results(records, '-inf', digits(now), removals_left)
  removals_left = removals_left - trim_results(records, removals_left, now, limits)
  for _, queue in ipairs(queues) do
    local before = digits(now - limits.dead_ttl)
    removals_left = removals_left - remove_dead(queue, records, before, removals_left, now, limits)
  end
  return removals_left == 0
end

-- Of the log of a job's attempts, the newest lines stay.
local MAX_LOG_BYTES = 65536

-- A log with a line more.
local function with_line(log, line)
  if line == '' then
    return log
  elseif #log > MAX_LOG_BYTES then
    log = string.match(log, '\n(.*)$', -MAX_LOG_BYTES) or ''
  end
  return log ~= '' and log .. '\n' .. line or line
end

local function append_log(records, id, line)
  if line ~= '' then
    redis.call('HSET', records.outcomes, id, with_line(redis.call('HGET', records.outcomes, id) or '', line))
  end
end

-- Has the end of the job wake the caller. An entry of an earlier end, before a redrive, is deleted.
local function await_end(records, id, state)
  redis.call('DEL', ended_key(records, id)) -- Redis never refuses it, nor the writes after it
  state.awaited = '1'
  write_state(records, id, state)
end

-- Wakes the clients that wait for the end of the job: there may be some if the state's `awaited` says so. Called before
-- the state is written.
local function wake_waiters(records, id, state)
  if state.awaited == '1' then
    add_ended(records, id)
    state.awaited = '0'
  end
end

-- Ends a job, with a last line of its log. Its result is kept for `ttl` ms, 0: not at all. `moment`: when it ended, if
-- that was earlier (ms).
local function finish_job(records, id, state, status, line, ttl, now, limits, moment)
  release_unique(records, id, state.unique)
  remove_tags(records, id, state.more)
  wake_waiters(records, id, state)
  count_end(records, state, status, now)
  if ttl <= 0 then
    return delete_job(records, id, state.unique)
  end
  state.status, state.moment, state.token = status, digits(moment or now), '-'
  local payload, log = redis.call('HGET', records.jobs, id), redis.call('HGET', records.outcomes, id)
  local lines = log and with_line(log, line) or line
  redis.call('HSET', records.states, id, format_state(state) .. '\n' .. (payload or '') .. '\n' .. lines)
  redis.call('HDEL', records.jobs, id)
  if log then
    redis.call('HDEL', records.outcomes, id)
  end
  keep_result(records, id, now + ttl, now, limits)
end
