-- The records of jobs: KEYS 1 to 6 of every job script; 7 and 8 are for request ids (JobKeys.records in
-- services/jobs/keys.py).
--
local function records_at(keys)
  return {
    jobs = keys[1], states = keys[2], log = keys[3], finished = keys[4], uniques = keys[5], aliases = keys[6],
  }
end

-- A job's state: "status priority attempts max_attempts fence token pushed first last moment workers unique".
-- status    w waiting, r running, s succeeded, d dead, c cancelled
-- fence     of the latest lease; token: random, chosen by the holder of that lease
-- pushed, first, last    ms: pushed, first and latest attempt started (0: never)
-- moment    ms: due time of a waiting or running job, else the end of the job
-- workers   one for each attempt, separated by commas; - for none
-- unique    key that no other unfinished job may have; empty for none
local STATE = '^(%a) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$'

local function parse_state(text)
  local status, priority, attempts, max_attempts, fence, token, pushed, first, last, moment, workers, unique =
    string.match(text, STATE)
  return {
    status = status,
    priority = tonumber(priority),
    attempts = tonumber(attempts),
    max_attempts = tonumber(max_attempts),
    fence = fence,
    token = token,
    pushed = pushed,
    first = first,
    last = last,
    moment = moment,
    workers = workers,
    unique = unique,
  }
end

-- The status alone, without parsing the rest.
local function status_of(text)
  return string.sub(text, 1, 1)
end

local function format_state(state)
  return table.concat({
    state.status, state.priority, state.attempts, state.max_attempts, state.fence, state.token, state.pushed,
    state.first, state.last, state.moment, state.workers, state.unique,
  }, ' ')
end

-- The state of a job that is pushed. `now` and `due` are ms, as text.
local function new_state(now, due, priority, max_attempts, unique)
  return {
    status = 'w', priority = priority, attempts = 0, max_attempts = max_attempts, fence = 0, token = '-',
    pushed = now, first = 0, last = 0, moment = due, workers = '-', unique = unique,
  }
end

-- Takes back the latest attempt: it doesn't count. A job without attempts has not started.
local function uncount_attempt(state)
  state.attempts = state.attempts - 1
  if state.attempts == 0 then
    state.first, state.last = '0', '0'
  end
  state.workers = string.match(state.workers, '^(.*),[^,]*$') or '-'
end

-- The state of a job and its text; nil if the job doesn't exist.
local function read_state(records, id)
  local text = redis.call('HGET', records.states, id)
  if text then
    return parse_state(text), text
  end
end

local function write_state(records, id, state)
  redis.call('HSET', records.states, id, format_state(state))
end

-- The job that an id stands for: after a push with a unique key in use, the job that has the key.
local function resolve_alias(records, id)
  return redis.call('HGET', records.aliases, 'a' .. id) or id
end

local function add_job(records, id, payload, state)
  redis.call('HSET', records.jobs, id, payload)
  write_state(records, id, state)
  if state.unique ~= '' then
    redis.call('HSET', records.uniques, state.unique, id)
  end
end

-- The state of a job that has this lease; nil if the lease is stale.
local function leased_state(records, id, fence, token)
  local state = read_state(records, id)
  if state and state.status == 'r' and state.fence == fence and state.token == token then
    return state
  end
end
