-- Makes a user a member, from the newest message on.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _log.lua
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 requests, first turn
-- KEYS  4 requests, second turn
-- KEYS  5 roster
-- KEYS  6 standing
-- KEYS  7 info
-- ARGV  1 user
-- ARGV  2 the member who adds the user, or ''
-- ARGV  3 token of this joining; also its request id
-- ARGV  4 request window: ms
-- ARGV  5 most members a chat has
-- Returns {joined: 1 or 0, token in force, epoch}, or 'no chat', 'not added' (by is no member),
--   'closed', 'full'
local last, _, epoch = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local now = clock()
local memory = {KEYS[3], KEYS[4]}
if answer_to(ARGV[3], memory, tonumber(ARGV[4]), now) then
  return {1, ARGV[3], epoch}
end
if ARGV[2] ~= '' and not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  return 'not added'
end
local join_id, __, token = standing_of(KEYS[5], ARGV[1])
if join_id then
  return {0, token, epoch}
end
if ARGV[2] == '' and redis.call('HGET', KEYS[7], 'open') ~= '1' then
  return 'closed'
end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[5]) then
  return 'full'
end
local joins = redis.call('HGET', KEYS[7], 'joins') + 1
redis.call('ZCARD', KEYS[6])
-- Every key has been read by now: one that holds another type has said so before the first write.

remembered(ARGV[3], '1', memory, tonumber(ARGV[4]), now, 0)
enrol(KEYS[5], ARGV[1], last, now, 'member', ARGV[3])
redis.call('ZADD', KEYS[2], last, ARGV[1])
redis.call('HSET', KEYS[7], 'joins', joins)
redis.call('ZADD', KEYS[6], joins, ARGV[1])
return {1, ARGV[3], epoch}
