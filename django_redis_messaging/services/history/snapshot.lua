-- Replaces the snapshot of the latest gauges.
--
-- uses common/_time.lua
--
-- KEYS  1 now
-- ARGV  1 how long it is kept: ms
-- ARGV  2 whether a poller makes it: 1 or 0
-- ARGV  3… for each series: name, gauges as text
-- Returns the server's clock (ms)
local snapshot, ttl, is_polled = KEYS[1], ARGV[1], ARGV[2] == '1'
local FIRST = 3
local now = milliseconds()
local polled = is_polled and digits(now) or redis.call('HGET', snapshot, 'polled')
redis.call('DEL', snapshot)
redis.call('HSET', snapshot, 'at', digits(now), unpack(ARGV, FIRST))
if polled then
  redis.call('HSET', snapshot, 'polled', polled)
end
redis.call('PEXPIRE', snapshot, ttl)
return now
