-- Lists the registered queues, and removes those that were not registered again for too long.
--
-- uses _time.lua
--
-- KEYS  1 queues
-- ARGV  1 age at which a queue is removed: ms
-- Returns their names, the latest last
local queues = KEYS[1]
local max_age = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', queues, '-inf', digits(milliseconds() - max_age))
return redis.call('ZRANGE', queues, 0, -1)
