-- What is known of a job.
--
-- uses _clock.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 aliases
-- ARGV  1 id
-- Returns id, payload, state, outcomes; or nothing
local id = redis.call('HGET', KEYS[5], 'a' .. ARGV[1]) or ARGV[1]
local state = redis.call('HGET', KEYS[2], id)
local ends = redis.call('ZSCORE', KEYS[4], id)
if not state or (ends and tonumber(ends) <= clock()) then
  return {}
end
return {id, redis.call('HGET', KEYS[1], id) or '', state, redis.call('HGET', KEYS[3], id) or ''}
