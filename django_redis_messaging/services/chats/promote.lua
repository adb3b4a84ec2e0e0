-- Changes a member's role. A chat keeps at least one owner.
--
-- uses _events.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 info
-- KEYS  2 roster
-- KEYS  3 requests, first hash
-- KEYS  4 requests, second hash
-- KEYS  5 newest
-- ARGV  1 owner who changes the role
-- ARGV  2 member
-- ARGV  3 role: owner or member
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- Returns 1 if the role has changed, also for a repeat, 0 if not, or 'no chat', 'no member', 'no owner', 'no other'
--   (ARGV[2] is no member), 'last owner'
local info, roster, requests = KEYS[1], KEYS[2], {KEYS[3], KEYS[4]}
local newest = KEYS[5]
local owner, member, new_role = ARGV[1], ARGV[2], ARGV[3]
local request, window = ARGV[4], tonumber(ARGV[5])

local now = milliseconds()
if find_answer(request, requests, window, now) then
  return 1
end
local refusal = refuse_unless_owner(info, roster, owner)
if refusal then
  return refusal
end
local join_id, role = read_listed(roster, member)
if not join_id then
  return 'no other'
elseif role == new_role then
  return 0
end
if role == 'owner' and redis.call('HGET', info, 'owners') == '1' then
  return 'last owner'
end
local chat = read_chat(newest)
-- HINCRBY comes first: it fails before anything has changed if info has another type.
redis.call('HINCRBY', info, 'owners', new_role == 'owner' and 1 or -1)
write_role(roster, member, new_role)
publish_hint('m', info)
record_answer(request, '1', requests, window, now)
if chat then
  add_event(info, now, chat.last, new_role, owner, {member})
end
return 1
