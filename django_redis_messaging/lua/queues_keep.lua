-- Registers a queue.
--
-- uses _time.lua
--
-- KEYS  1 queues
-- ARGV  1 name
-- Returns the server's clock (ms)
local queues = KEYS[1]
local name = ARGV[1]
local now = milliseconds()
redis.call('ZADD', queues, digits(now), name)
return now
