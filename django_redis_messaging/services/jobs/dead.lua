-- Reads the dead jobs of a queue, the latest first.
--
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 number of jobs
-- ARGV  2 age at which a dead job is deleted: ms
-- Returns a list of {id, payload, state, log}
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local count, max_age = ARGV[1], tonumber(ARGV[2])
local since = '(' .. digits(milliseconds() - max_age)
local reply = {}
for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', queue.dead, '+inf', since, 'LIMIT', 0, count)) do
  local payload, state = redis.call('HGET', records.jobs, id), redis.call('HGET', records.states, id)
  if payload and state then
    reply[#reply + 1] = {id, payload, state, redis.call('HGET', records.outcomes, id) or ''}
  end
end
return reply
