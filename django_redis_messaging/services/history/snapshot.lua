-- Replaces the snapshot of the latest gauges.
--
-- uses common/_time.lua
--
-- KEYS  1 now
-- ARGV  1 how long it is kept: ms
-- ARGV  2… for each series: name, gauges as text
-- Returns the server's clock (ms)
local snapshot, ttl = KEYS[1], ARGV[1]
local now = milliseconds()
redis.call('DEL', snapshot)
redis.call('HSET', snapshot, 'at', digits(now), unpack(ARGV, 2))
redis.call('PEXPIRE', snapshot, ttl)
return now
