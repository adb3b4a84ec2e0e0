-- Deletes a chat with all it holds.
--
-- uses _clock.lua
-- uses _requests.lua
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
-- ARGV  2 request window: ms
-- ARGV  3 request id
-- Returns {member, token, member, token, …}, none of them to a repeat; or 'no chat', 'no member', 'no owner'
local memory, window, now = {KEYS[10], KEYS[11]}, tonumber(ARGV[2]), clock()
if answer_to(ARGV[3], memory, window, now) then
  return {}
end
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
redis.call('DEL', unpack(KEYS, 1, 9))
-- The remembered requests stay, for late repeats.
memorized(ARGV[3], '1', memory, window, now)
redis.call('PEXPIRE', KEYS[10], ARGV[2])
redis.call('PEXPIRE', KEYS[11], ARGV[2])
return tokens
