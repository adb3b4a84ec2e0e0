-- Deletes a chat with all it holds.
--
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 roster
-- KEYS  6 standing
-- KEYS  7 typing
-- KEYS  8 mutes
-- KEYS  9 info
-- ARGV  1 the owner
-- Returns {member, token, member, token, …}, or 'no chat', 'no member', 'no owner'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
local join_id, role = standing_of(KEYS[5], ARGV[1])
if not join_id then
  return 'no member'
elseif role ~= 'owner' then
  return 'no owner'
end
local tokens = {}
for at, value in ipairs(redis.call('HGETALL', KEYS[5])) do
  tokens[at] = at % 2 == 1 and value or string.match(value, '(%S+)$')
end
redis.call('DEL', unpack(KEYS))
return tokens
