-- Ends a live stream of a user.
--
-- uses common/_time.lua
--
-- KEYS  1 streams: the user's streams in all processes
-- KEYS  2 online: that the user is online
-- ARGV  1 token of the stream
-- ARGV  2 ms for which the user is still online: they may be on the way to another page
-- Returns nothing
local streams, online = KEYS[1], KEYS[2]
local token, grace = ARGV[1], ARGV[2]

redis.call('ZREM', streams, token)
if redis.call('ZCOUNT', streams, milliseconds(), '+inf') == 0 then
  redis.call('PEXPIRE', online, grace)
end
return false
