-- Changes the title of a chat.
--
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- ARGV  1 user
-- ARGV  2 title
-- Returns 1, or 'no chat', 'no member'
local info, members = KEYS[1], KEYS[2]
local user, title = ARGV[1], ARGV[2]

local refusal = refuse_unless_member(info, members, user)
if refusal then
  return refusal
end
redis.call('HSET', info, 'title', title)
return 1
