-- Makes a user a member, from the newest message on.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 requests, first turn
-- KEYS  6 requests, second turn
-- KEYS  7 requests, third turn
-- KEYS  8 roster
-- KEYS  9 standing
-- ARGV  1 user
-- ARGV  2 the member who adds the user, or ''
-- ARGV  3 token of this joining; also its request id
-- ARGV  4 request window: ms
-- ARGV  5 most members a chat has
-- Returns {joined: 1 or 0, token in force, epoch}, or 'no chat', 'not added' (by is no member),
--   'closed', 'full'
local info = redis.call('HMGET', KEYS[1], 'last', 'epoch', 'open')
if not info[1] then
  return 'no chat'
end
local now = clock()
local memory = {KEYS[5], KEYS[6], KEYS[7]}
if answer_to(ARGV[3], memory, tonumber(ARGV[4]), now) then
  return {1, ARGV[3], info[2]}
end
if ARGV[2] ~= '' and not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  return 'not added'
end
local join_id, _, token = standing_of(KEYS[8], ARGV[1])
if join_id then
  return {0, token, info[2]}
end
if ARGV[2] == '' and info[3] ~= '1' then
  return 'closed'
end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[5]) then
  return 'full'
end

enrol(KEYS[8], ARGV[1], info[1], now, 'member', ARGV[3])
redis.call('ZADD', KEYS[2], info[1], ARGV[1])
redis.call('ZADD', KEYS[9], redis.call('HINCRBY', KEYS[1], 'joins', 1), ARGV[1])
remember(ARGV[3], '1', memory, tonumber(ARGV[4]), now)
return {1, ARGV[3], info[2]}
