-- Notes that a member is typing.
--
-- uses _clock.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 typing
-- ARGV  1 user
-- ARGV  2 how long that counts: ms
-- ARGV  3 most members a chat may have for it
-- Returns 1 if noted, 0 if the chat is too large for it, or 'no chat', 'no member'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return 'no member'
end
if redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[3], clock() + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
