-- Reads a job.
--
-- uses _records.lua
-- uses _time.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- ARGV  1 id
-- ARGV  2 age at which a dead job is deleted: ms
-- Returns {id, payload, state, log}; {} if the job doesn't exist, or its result has expired
local records = records_at(KEYS)
local id, max_age = ARGV[1], tonumber(ARGV[2])
id = resolve_alias(records, id)
local state, text = read_state(records, id)
if not state then
  return {}
end
local now = milliseconds()
local expires = redis.call('ZSCORE', records.finished, id)
if (expires and tonumber(expires) <= now) or (state.status == 'd' and state.moment + max_age <= now) then
  return {}
end
return {id, redis.call('HGET', records.jobs, id) or '', text, redis.call('HGET', records.log, id) or ''}
