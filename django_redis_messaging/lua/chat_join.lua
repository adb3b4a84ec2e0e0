-- Makes a user a member who sees the messages sent from now on.
--
-- uses _log.lua
-- uses _members.lua
-- uses _requests.lua
-- uses _time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 requests, first hash
-- KEYS  4 requests, second hash
-- KEYS  5 roster
-- KEYS  6 seniority
-- KEYS  7 info
-- ARGV  1 user
-- ARGV  2 member who adds the user, or ''
-- ARGV  3 token of the new membership; also its request id
-- ARGV  4 request window: ms
-- ARGV  5 maximum number of members of a chat
-- Returns {joined: 1 or 0, token in force, epoch}, or 'no chat', 'not added' (ARGV[2] is no member), 'closed', 'full',
--   'damaged' (keys of the chat were lost)
local newest, members, requests = KEYS[1], KEYS[2], {KEYS[3], KEYS[4]}
local roster, seniority, info = KEYS[5], KEYS[6], KEYS[7]
local user, adder, token = ARGV[1], ARGV[2], ARGV[3]
local window, max_members = tonumber(ARGV[4]), tonumber(ARGV[5])

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local now = milliseconds()
if find_answer(token, requests, window, now) then
  return {1, token, chat.epoch}
end
if adder ~= '' and not redis.call('ZSCORE', members, adder) then
  return 'not added'
end
local join_id, __, token_in_force = read_membership(roster, user)
if join_id then
  return {0, token_in_force, chat.epoch}
end
if adder == '' and redis.call('HGET', info, 'open') ~= '1' then
  return 'closed'
end
local count, joins = redis.call('ZCARD', members), redis.call('HGET', info, 'joins')
if count >= max_members then
  return 'full'
end
-- The acks of a new member would remove messages that members have not read whose positions were lost.
if not joins or count ~= redis.call('HLEN', roster) or count ~= redis.call('ZCARD', seniority) then
  return 'damaged'
end
joins = joins + 1
-- Every key has been read by now: a key of another type has raised an error before the first write.

record_answer_once(token, '1', requests, window, now)
write_membership(roster, user, chat.last, now, 'member', token)
redis.call('ZADD', members, chat.last, user)
redis.call('HSET', info, 'joins', joins)
redis.call('ZADD', seniority, joins, user)
return {1, token, chat.epoch}
