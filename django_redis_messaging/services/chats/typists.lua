-- Lists the members who are typing, those who typed last at the end.
--
-- reads only
-- uses common/_time.lua
--
-- KEYS  1 info
-- KEYS  2 typing
-- ARGV  1 how long a member counts as typing: ms
-- Returns {member, …}, or 'no chat'
local info, typing = KEYS[1], KEYS[2]
local window = tonumber(ARGV[1])

if redis.call('EXISTS', info) == 0 then
  return 'no chat'
end
-- Those above were typing before the clock was set back.
local now = milliseconds()
return redis.call('ZRANGEBYSCORE', typing, '(' .. now, now + window)
