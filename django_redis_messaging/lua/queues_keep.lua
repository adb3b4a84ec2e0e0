-- Remembers that a queue is there.
--
-- uses _clock.lua
--
-- KEYS  1 queues
-- ARGV  1 name
-- Returns the server's clock (ms)
local now = clock()
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
return now
