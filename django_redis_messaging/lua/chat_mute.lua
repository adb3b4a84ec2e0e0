-- Mutes a chat for a member, until a moment.
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 mutes
-- ARGV  1 user
-- ARGV  2 ms until which the chat is muted; 0: it is not
-- Returns 1, or 'no chat', 'no member'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return 'no member'
end
if ARGV[2] == '0' then
  redis.call('HDEL', KEYS[3], ARGV[1])
else
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
end
return 1
