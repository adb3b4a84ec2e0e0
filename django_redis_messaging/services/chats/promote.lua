-- Changes a member's role. A chat keeps at least one owner.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 owner who changes the role
-- ARGV  2 member
-- ARGV  3 role: owner or member
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- Returns 1 if the role has changed, also for a repeat, 0 if not, or 'no chat', 'no member', 'no owner', 'no other'
--   (ARGV[2] is no member), 'last owner'
local keys = chat_at(KEYS)
local owner, member, new_role = ARGV[1], ARGV[2], ARGV[3]
local request, window = ARGV[4], tonumber(ARGV[5])

local now = milliseconds()
if find_answer(request, keys.requests, window, now) then
  return 1
end
local refusal = refuse_unless_owner(keys.info, keys.roster, owner)
if refusal then
  return refusal
end
local join_id, role = read_listed(keys.roster, member)
if not join_id then
  return 'no other'
elseif role == new_role then
  return 0
end
if role == 'owner' and redis.call('HGET', keys.info, 'owners') == '1' then
  return 'last owner'
end
local chat = read_chat(keys.newest)
redis.call('LLEN', keys.events)
-- HINCRBY comes first: it fails before anything has changed if info has another type.
redis.call('HINCRBY', keys.info, 'owners', new_role == 'owner' and 1 or -1)
write_role(keys.roster, member, new_role)
publish_hint('m', keys.info)
record_answer(request, '1', keys.requests, window, now)
if chat then
  add_event(keys.info, keys.events, now, chat.last, new_role, owner, {member})
end
return 1
