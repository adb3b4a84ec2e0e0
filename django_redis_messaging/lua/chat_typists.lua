-- Lists the members who are typing, the latest last.
--
-- reads only
-- uses _clock.lua
--
-- KEYS  1 info
-- KEYS  2 typing
-- Returns {member, …}, or 'no chat'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
return redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. clock(), '+inf')
