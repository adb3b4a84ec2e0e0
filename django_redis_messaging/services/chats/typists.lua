-- Lists the members who are typing, those who typed last at the end.
--
-- reads only
-- uses _chat.lua
-- uses common/_time.lua
--
-- KEYS  1-10 chat (_chat.lua)
-- ARGV  1 how long a member counts as typing: ms
-- Returns {member, …}, or 'no chat'
local keys = chat_at(KEYS)
local window = tonumber(ARGV[1])

if redis.call('EXISTS', keys.info) == 0 then
  return 'no chat'
end
-- Those above were typing before the clock was set back.
local now = milliseconds()
return redis.call('ZRANGEBYSCORE', keys.typing, '(' .. now, now + window)
