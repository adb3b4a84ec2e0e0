-- Marks the channel as having waiting readers, and checks that the caller has read its newest event.
--
-- uses _broadcast.lua
--
-- KEYS  1-5 broadcast (_broadcast.lua)
-- ARGV  1 the caller's position, as the head begins: "id-us-epoch-"
-- ARGV  2 how long the mark is kept: ms
-- Returns 1, or 0 if the channel is at another position
local broadcast = broadcast_at(KEYS)
local position, ttl = ARGV[1], ARGV[2]
-- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('PEXPIRE', broadcast.waiting, ttl)
redis.call('SET', broadcast.waiting, '', 'PX', ttl)
local found = redis.call('GET', broadcast.head)
return found and string.sub(found, 1, #position) == position and 1 or 0
