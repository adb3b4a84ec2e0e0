-- Reads the role of a member.
--
-- reads only
-- uses _chat.lua
-- uses _members.lua
--
-- KEYS  1-5 chat (_chat.lua)
-- ARGV  1 user
-- Returns the role, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user = ARGV[1]

if redis.call('EXISTS', keys.newest) == 0 then
  return 'no chat'
end
local join_id, role = read_membership(keys.roster, user)
return join_id and role or 'no member'
