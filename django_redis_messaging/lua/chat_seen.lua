-- Lists the members who have acked a message.
--
-- reads only
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 roster
-- ARGV  1 id
-- ARGV  2 maximum number of members
-- Returns {member, …}, or 'no chat'
local info, members, roster = KEYS[1], KEYS[2], KEYS[3]
local id, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

if redis.call('EXISTS', info) == 0 then
  return 'no chat'
end
local seen = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', members, id, '+inf')) do
  -- Members who joined after the message also have a position above it, but have not seen it.
  local join_id = #seen < limit and read_membership(roster, member)
  if join_id and join_id < id then
    seen[#seen + 1] = member
  end
end
return seen
