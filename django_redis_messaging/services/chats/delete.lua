-- Deletes a chat with all its contents, also if some of its keys were lost.
--
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 own
-- KEYS  4 log
-- KEYS  5 roster
-- KEYS  6 seniority
-- KEYS  7 typing
-- KEYS  8 mutes
-- KEYS  9 info
-- KEYS  10 removed
-- KEYS  11 opted out
-- KEYS  12 hidden
-- KEYS  13 requests, first hash
-- KEYS  14 requests, second hash
-- ARGV  1 user who deletes the chat: an owner. Without a roster, a member; without members as well, any user:
--         nobody can read such a chat.
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns {member, token, member, token, …}, empty for a repeat; or 'no chat', 'no member', 'no owner'
local members, roster, requests = KEYS[2], KEYS[5], {KEYS[13], KEYS[14]}
local user, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Without a roster, the members decide.
local function refuse_unless_allowed()
  if redis.call('EXISTS', unpack(KEYS, 1, 12)) == 0 then
    return 'no chat'
  end
  if redis.call('EXISTS', roster) == 1 then
    return refuse_unless_owner(roster, roster, user)
  end
  return redis.call('EXISTS', members) == 1 and refuse_unless_member(members, members, user) or nil
end

local now = milliseconds()
if find_answer(request, requests, window, now) then
  return {}
end
local refusal = refuse_unless_allowed()
if refusal then
  return refusal
end
local tokens = {}
for at, value in ipairs(redis.call('HGETALL', roster)) do
  tokens[at] = at % 2 == 1 and value or token_of(value)
end
redis.call('UNLINK', unpack(KEYS, 1, 12))
publish_hint('m', members)
-- The recorded answers stay for late repeats.
record_answer(request, '1', requests, window, now)
redis.call('PEXPIRE', requests[1], window)
redis.call('PEXPIRE', requests[2], window)
return tokens
