-- Keeps how far a named consumer is.
--
-- KEYS  1 position
-- ARGV  1 cursor
-- ARGV  2 how long it is kept: ms
-- Returns OK
--
-- Redis refuses no PEXPIRE for want of memory, nor what a script writes after it.
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
