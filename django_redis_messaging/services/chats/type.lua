-- Records that a member is typing.
--
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_time.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 typing
-- ARGV  1 user
-- ARGV  2 how long the user counts as typing: ms
-- ARGV  3 maximum number of members of a chat with typing indicators
-- Returns 1 if recorded, 0 if the chat has too many members, or 'no chat', 'no member'
local info, members, typing = KEYS[1], KEYS[2], KEYS[3]
local user, duration, max_members = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local refusal = refuse_unless_member(info, members, user)
if refusal then
  return refusal
end
if redis.call('ZCARD', members) > max_members then
  return 0
end
redis.call('ZADD', typing, milliseconds() + duration, user)
redis.call('PEXPIRE', typing, duration)
publish_hint('t', typing)
return 1
