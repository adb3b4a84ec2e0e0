-- Records that a member is typing.
--
-- uses _chat.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_time.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 how long the user counts as typing: ms
-- ARGV  3 maximum number of members of a chat with typing indicators
-- Returns 1 if recorded, 0 if the chat has too many members, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user, duration, max_members = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local refusal = refuse_unless_member(keys.info, keys.members, user)
if refusal then
  return refusal
end
if redis.call('ZCARD', keys.members) > max_members then
  return 0
end
redis.call('ZADD', keys.typing, milliseconds() + duration, user)
redis.call('PEXPIRE', keys.typing, duration)
publish_hint('t', keys.typing)
return 1
