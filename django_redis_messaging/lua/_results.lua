-- The end of a job: the log of its attempts, its result, and its deletion.
--
-- uses _records.lua
-- uses _time.lua

-- Deletes all records of a job. `unique`: its unique key, nil if it has none.
local function delete_job(records, id, unique)
  redis.call('HDEL', records.jobs, id)
  redis.call('HDEL', records.states, id)
  redis.call('HDEL', records.log, id)
  if unique and unique ~= '' then
    local others = redis.call('HGET', records.aliases, 'j' .. id)
    for other in string.gmatch(others or '', '%S+') do
      redis.call('HDEL', records.aliases, 'a' .. other)
    end
    redis.call('HDEL', records.aliases, 'j' .. id)
  end
end

-- Frees the unique key of a job, if the job has it.
local function release_unique(records, id, unique)
  if unique ~= '' and redis.call('HGET', records.uniques, unique) == id then
    redis.call('HDEL', records.uniques, unique)
  end
end

-- Deletes the first `count` jobs of a ZSET whose score is at most `moment`.
local function delete_expired(records, zset, moment, count)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', zset, '-inf', moment, 'LIMIT', 0, count)) do
    local state = read_state(records, id)
    delete_job(records, id, state and state.unique)
    redis.call('ZREM', zset, id)
  end
end

-- Appends a line to the log of a job's attempts. Of a long log, the newest lines stay.
local MAX_LOG_BYTES = 65536

local function append_log(records, id, line)
  if line == '' then
    return
  end
  local before = redis.call('HGET', records.log, id)
  if before and #before > MAX_LOG_BYTES then
    before = string.match(before, '\n(.*)$', -MAX_LOG_BYTES)
  end
  redis.call('HSET', records.log, id, before and before .. '\n' .. line or line)
end

-- Ends a job. Its result is kept for `ttl` ms, 0: not at all.
local function finish_job(records, id, state, status, now, ttl)
  release_unique(records, id, state.unique)
  if ttl <= 0 then
    return delete_job(records, id, state.unique)
  end
  state.status, state.moment, state.token = status, digits(now), '-'
  write_state(records, id, state)
  redis.call('ZADD', records.finished, digits(now + ttl), id)
  delete_expired(records, records.finished, digits(now), 2)
end
