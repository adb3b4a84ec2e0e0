-- Stores the limit that a task declares, unless the latest declaration was the same: a limit that was set after it
-- stays in force.
--
-- KEYS  1 limit
-- KEYS  2 declared
-- ARGV  1 declared limit
-- ARGV  2 how long both are kept: ms
-- Returns nothing
local limit, declared = KEYS[1], KEYS[2]
local permits, ttl = ARGV[1], ARGV[2]
-- GETEX comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
if redis.call('GETEX', declared, 'PX', ttl) ~= permits then
  redis.call('SET', declared, permits, 'PX', ttl)
  redis.call('SET', limit, permits, 'PX', ttl)
end
