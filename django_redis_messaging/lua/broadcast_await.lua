-- Tells publishers that somebody waits, unless there is something new already.
--
-- KEYS  1 head
-- KEYS  2 waiting
-- ARGV  1 place of the reader, as the head begins: "id-us-epoch-"
-- ARGV  2 for how long somebody waits: ms
-- Returns 1, or 0 where the channel is at another place
--
-- Redis refuses no PEXPIRE for want of memory, nor what a script writes after it.
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
local line = redis.call('GET', KEYS[1])
return line and string.sub(line, 1, #ARGV[1]) == ARGV[1] and 1 or 0
