-- Lists the members who are typing, those who typed last at the end.
--
-- reads only
-- uses _time.lua
--
-- KEYS  1 info
-- KEYS  2 typing
-- Returns {member, …}, or 'no chat'
local info, typing = KEYS[1], KEYS[2]

if redis.call('EXISTS', info) == 0 then
  return 'no chat'
end
return redis.call('ZRANGEBYSCORE', typing, '(' .. milliseconds(), '+inf')
