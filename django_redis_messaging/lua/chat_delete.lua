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
-- KEYS  10 requests, first turn
-- KEYS  11 requests, second turn
-- ARGV  1 the owner
-- ARGV  2 how long requests are remembered: ms
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
-- The remembered requests stay: a late repeat is still told what its first sending did.
redis.call('PEXPIRE', KEYS[10], ARGV[2])
redis.call('PEXPIRE', KEYS[11], ARGV[2])
redis.call('DEL', unpack(KEYS, 1, 9))
return tokens
