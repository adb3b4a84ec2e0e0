-- A job's records: jobs, states, outcomes, finished, uniques, aliases.
local function records_at(keys)
  return {jobs = keys[1], states = keys[2], outcomes = keys[3], finished = keys[4], uniques = keys[5], aliases = keys[6]}
end

-- Removes all that is known of a job.
local function forgotten(records, id, unique)
  redis.call('HDEL', records.jobs, id)
  redis.call('HDEL', records.states, id)
  redis.call('HDEL', records.outcomes, id)
  if unique and unique ~= '' then
    local others = redis.call('HGET', records.aliases, 'j' .. id)
    for other in string.gmatch(others or '', '%S+') do
      redis.call('HDEL', records.aliases, 'a' .. other)
    end
    redis.call('HDEL', records.aliases, 'j' .. id)
  end
end

-- Lets others have the key that a job had while it was under way.
local function released(records, id, unique)
  if unique ~= '' and redis.call('HGET', records.uniques, unique) == id then
    redis.call('HDEL', records.uniques, unique)
  end
end

-- Removes jobs that are listed in a ZSET up to a moment, some at a time.
local function expired(records, list, moment, count)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', list, '-inf', moment, 'LIMIT', 0, count)) do
    local text = redis.call('HGET', records.states, id)
    forgotten(records, id, text and state_of(text).unique)
    redis.call('ZREM', list, id)
  end
end

-- Adds a line to what a job's attempts led to; of very many lines, the latest stay.
local MOST_BYTES = 65536

local function noted(records, id, line)
  if line == '' then
    return
  end
  local before = redis.call('HGET', records.outcomes, id)
  if before and #before > MOST_BYTES then
    before = string.match(before, '\n(.*)$', -MOST_BYTES)
  end
  redis.call('HSET', records.outcomes, id, before and before .. '\n' .. line or line)
end

-- Keeps the result of a job that has come to an end for a while, or forgets it at once.
local function ended(records, id, state, status, now, ttl)
  released(records, id, state.unique)
  if ttl <= 0 then
    return forgotten(records, id, state.unique)
  end
  state.status, state.moment, state.token = status, digits(now), '-'
  redis.call('HSET', records.states, id, text_of(state))
  redis.call('ZADD', records.finished, digits(now + ttl), id)
  expired(records, records.finished, digits(now), 2)
end
