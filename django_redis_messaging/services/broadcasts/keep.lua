-- Stores the position of a named consumer.
--
-- KEYS  1 position
-- ARGV  1 cursor
-- ARGV  2 how long it is kept: ms
-- Returns OK
local position = KEYS[1]
local cursor, ttl = ARGV[1], ARGV[2]
-- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('PEXPIRE', position, ttl)
return redis.call('SET', position, cursor, 'PX', ttl)
