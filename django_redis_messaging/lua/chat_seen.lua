-- Lists the members who have acked a message.
--
-- reads only
--
-- KEYS  1 info
-- KEYS  2 members
-- ARGV  1 id
-- ARGV  2 most members
-- Returns {member, …}, or 'no chat'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
return redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
