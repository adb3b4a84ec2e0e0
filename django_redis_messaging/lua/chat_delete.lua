-- Deletes a chat with all its contents.
--
-- uses _members.lua
-- uses _requests.lua
-- uses _time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 roster
-- KEYS  6 seniority
-- KEYS  7 typing
-- KEYS  8 mutes
-- KEYS  9 info
-- KEYS  10 requests, first hash
-- KEYS  11 requests, second hash
-- ARGV  1 owner who deletes the chat
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- Returns {member, token, member, token, …}, empty for a repeat; or 'no chat', 'no member', 'no owner'
local newest, roster, requests = KEYS[1], KEYS[5], {KEYS[10], KEYS[11]}
local owner, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])

local now = milliseconds()
if find_answer(request, requests, window, now) then
  return {}
end
local refusal = refuse_unless_owner(newest, roster, owner)
if refusal then
  return refusal
end
local tokens = {}
for at, value in ipairs(redis.call('HGETALL', roster)) do
  tokens[at] = at % 2 == 1 and value or token_of(value)
end
redis.call('DEL', unpack(KEYS, 1, 9))
-- The recorded answers stay for late repeats.
record_answer(request, '1', requests, window, now)
redis.call('PEXPIRE', requests[1], window)
redis.call('PEXPIRE', requests[2], window)
return tokens
