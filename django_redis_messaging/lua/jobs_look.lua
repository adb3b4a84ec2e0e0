-- What is known of a job.
--
-- uses _clock.lua
-- uses _states.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 aliases
-- ARGV  1 id
-- ARGV  2 age at which a dead job is forgotten: ms
-- Returns id, payload, state, outcomes; or nothing
local id = redis.call('HGET', KEYS[5], 'a' .. ARGV[1]) or ARGV[1]
local text = redis.call('HGET', KEYS[2], id)
if not text then
  return {}
end
local state, now = state_of(text), clock()
local ends = redis.call('ZSCORE', KEYS[4], id)
if (ends and tonumber(ends) <= now) or (state.status == 'd' and state.moment + ARGV[2] <= now) then
  return {}
end
return {id, redis.call('HGET', KEYS[1], id) or '', text, redis.call('HGET', KEYS[3], id) or ''}
