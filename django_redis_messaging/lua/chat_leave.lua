-- Ends a membership. The last one out deletes the chat; the last owner's rights pass to the
-- longest-standing member.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _log.lua
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
-- ARGV  1 user
-- ARGV  2 the owner who removes the user, or ''
-- ARGV  3 request window: ms
-- ARGV  4 request id
-- Returns the token of the membership that ended, or 'no chat', 'no member', 'no remover', 'no owner'
local memory, window, now = {KEYS[10], KEYS[11]}, tonumber(ARGV[3]), clock()
local before = answer_to(ARGV[4], memory, window, now)
if before then
  return before
end
local last, _, __, keep = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
if ARGV[2] ~= '' and ARGV[2] ~= ARGV[1] then
  local join_id, role = standing_of(KEYS[5], ARGV[2])
  if not join_id then
    return 'no remover'
  elseif role ~= 'owner' then
    return 'no owner'
  end
end
local join_id, role, token = standing_of(KEYS[5], ARGV[1])
if not join_id then
  return 'no member'
end
-- One that holds another type says so before the first write.
local first = first_of(KEYS[4], last)
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[6])
redis.call('ZCARD', KEYS[7])
redis.call('HLEN', KEYS[8])
redis.call('HLEN', KEYS[9])

redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[5], ARGV[1])
redis.call('ZREM', KEYS[6], ARGV[1])
redis.call('HDEL', KEYS[3], 's' .. ARGV[1], 'a' .. ARGV[1])
redis.call('ZREM', KEYS[7], ARGV[1])
redis.call('HDEL', KEYS[8], ARGV[1])
memorized(ARGV[4], token, memory, window, now)
local heir = redis.call('ZRANGE', KEYS[6], 0, 0)[1]
if not heir then
  -- The remembered requests stay, for late repeats.
  redis.call('PEXPIRE', KEYS[10], ARGV[3])
  redis.call('PEXPIRE', KEYS[11], ARGV[3])
  redis.call('DEL', unpack(KEYS, 1, 9))
  return token
end
if role == 'owner' and redis.call('HINCRBY', KEYS[9], 'owners', -1) == 0 then
  local their_join_id, ___, their_token, joined_at = standing_of(KEYS[5], heir)
  enrol(KEYS[5], heir, their_join_id, joined_at, 'owner', their_token)
  redis.call('HINCRBY', KEYS[9], 'owners', 1)
end
released(KEYS[2], KEYS[4], first, last, keep)
return token
