-- Reads the role of a member.
--
-- reads only
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 roster
-- ARGV  1 user
-- Returns the role, or 'no chat', 'no member'
local newest, roster = KEYS[1], KEYS[2]
local user = ARGV[1]

if redis.call('EXISTS', newest) == 0 then
  return 'no chat'
end
local join_id, role = read_membership(roster, user)
return join_id and role or 'no member'
