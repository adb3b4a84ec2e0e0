-- Lists the members who have acked a message.
--
-- reads only
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 roster
-- ARGV  1 id
-- ARGV  2 most members
-- Returns {member, …}, or 'no chat'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
local seen, id, most = {}, tonumber(ARGV[1]), tonumber(ARGV[2])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], id, '+inf')) do
  -- The position of who joined after the message is beyond it, too.
  if #seen < most and standing_of(KEYS[3], member) < id then
    seen[#seen + 1] = member
  end
end
return seen
