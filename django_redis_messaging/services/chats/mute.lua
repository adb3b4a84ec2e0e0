-- Mutes a chat for a member until a given time.
--
-- uses _members.lua
-- uses common/_live.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 mutes
-- ARGV  1 user
-- ARGV  2 ms until which the chat is muted; 0 to unmute it
-- Returns 1, or 'no chat', 'no member'
local info, members, mutes = KEYS[1], KEYS[2], KEYS[3]
local user, muted_until = ARGV[1], ARGV[2]

local refusal = refuse_unless_member(info, members, user)
if refusal then
  return refusal
end
if muted_until == '0' then
  redis.call('HDEL', mutes, user)
else
  redis.call('HSET', mutes, user, muted_until)
end
publish_hint('a', info, user)
return 1
