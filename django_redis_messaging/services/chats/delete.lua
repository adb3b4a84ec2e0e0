-- Deletes a chat with all its contents, even if some of its keys were lost.
--
-- uses _chat.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 user who deletes the chat: an owner. Without a roster, a member; without members as well, any user:
--         nobody can read such a chat.
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns {member, join number, …}, empty for a repeat; or 'no chat', 'no member', 'no owner'
local keys = chat_at(KEYS)
local user, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Without a roster, the members decide.
local function refuse_unless_allowed()
  if redis.call('EXISTS', keys_to_delete(KEYS)) == 0 then
    return 'no chat'
  end
  if redis.call('EXISTS', keys.roster) == 1 then
    return refuse_unless_owner(keys.roster, keys.roster, user)
  end
  return redis.call('EXISTS', keys.members) == 1 and refuse_unless_member(keys.members, keys.members, user) or nil
end

local now = milliseconds()
if find_answer(request, keys.requests, window, now) then
  return {}
end
local refusal = refuse_unless_allowed()
if refusal then
  return refusal
end
local numbers = {}
for at, value in ipairs(redis.call('HGETALL', keys.roster)) do
  numbers[at] = at % 2 == 1 and value or join_number_of(value)
end
redis.call('UNLINK', keys_to_delete(KEYS))
publish_hint('m', keys.members)
-- The recorded answers stay for late repeats.
record_answer(request, '1', keys.requests, window, now)
redis.call('PEXPIRE', keys.requests[1], window)
redis.call('PEXPIRE', keys.requests[2], window)
return numbers
