-- Gives a member another role. A chat keeps an owner.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 roster
-- KEYS  3 requests, first turn
-- KEYS  4 requests, second turn
-- ARGV  1 the owner
-- ARGV  2 member
-- ARGV  3 role: owner or member
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- Returns 1 if that changed something, also to a repeat, 0 if not, or 'no chat', 'no member', 'no owner', 'no other'
--   (ARGV[2] is no member), 'last owner'
local memory, window, now = {KEYS[3], KEYS[4]}, tonumber(ARGV[5]), clock()
if answer_to(ARGV[4], memory, window, now) then
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
local own_join_id, own_role = standing_of(KEYS[2], ARGV[1])
if not own_join_id then
  return 'no member'
elseif own_role ~= 'owner' then
  return 'no owner'
end
local join_id, role, token, joined_at = standing_of(KEYS[2], ARGV[2])
if not join_id then
  return 'no other'
elseif role == ARGV[3] then
  return 0
end
if role == 'owner' and redis.call('HGET', KEYS[1], 'owners') == '1' then
  return 'last owner'
end
-- first, since it says so if that key holds another type
redis.call('HINCRBY', KEYS[1], 'owners', ARGV[3] == 'owner' and 1 or -1)
enrol(KEYS[2], ARGV[2], join_id, joined_at, ARGV[3], token)
memorized(ARGV[4], '1', memory, window, now)
return 1
