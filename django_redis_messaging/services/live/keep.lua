-- Opens a live stream of a user, or renews it. The user is online as long as they have one, unless they have chosen
-- not to be seen.
--
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1 streams: the user's streams in all processes
-- KEYS  2 online: that the user is online
-- KEYS  3 choices: what others may see of the user
-- ARGV  1 token of the stream
-- ARGV  2 ms for which it counts unless it is renewed
-- ARGV  3 maximum number of streams; 0: any number
-- Returns 1; 0 if the user has as many streams already
local streams, online, choices = KEYS[1], KEYS[2], KEYS[3]
local token, lifetime, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

allow_writes_when_full(choices)
local now = milliseconds()
redis.call('ZREMRANGEBYSCORE', streams, '-inf', now)
-- Those above were kept before the clock was set back; a stream that is still open is kept again.
redis.call('ZREMRANGEBYSCORE', streams, '(' .. now + lifetime, '+inf')
if limit > 0 and redis.call('ZCARD', streams) >= limit then
  return 0
end
redis.call('ZADD', streams, now + lifetime, token)
redis.call('PEXPIRE', streams, lifetime)
if redis.call('HGET', choices, 'online') ~= '0' then
  redis.call('SET', online, '', 'PX', lifetime)
end
return 1
