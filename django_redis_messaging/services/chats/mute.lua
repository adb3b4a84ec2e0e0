-- Mutes a chat for a member until a given time.
--
-- uses _chat.lua
-- uses _members.lua
-- uses common/_hints.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 ms until which the chat is muted; 0 to unmute it
-- Returns 1, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user, muted_until = ARGV[1], ARGV[2]

local refusal = refuse_unless_member(keys.info, keys.members, user)
if refusal then
  return refusal
end
if muted_until == '0' then
  redis.call('HDEL', keys.mutes, user)
else
  redis.call('HSET', keys.mutes, user, muted_until)
end
publish_hint('a', keys.info, user)
return 1
