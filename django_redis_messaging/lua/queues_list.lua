-- The queues that were kept not too long ago; forgets the others.
--
-- uses _clock.lua
--
-- KEYS  1 queues
-- ARGV  1 time after which a queue is forgotten: ms
-- Returns their names
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', clock() - ARGV[1]))
return redis.call('ZRANGE', KEYS[1], 0, -1)
