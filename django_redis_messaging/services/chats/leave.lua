-- Ends a membership. The last member to leave deletes the chat; if the last owner leaves, the longest-standing
-- member becomes an owner. Also works if some of the chat's keys were lost, so that no repair restores the membership.
--
-- uses _events.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_types.lua
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
-- ARGV  1 user
-- ARGV  2 owner who removes the user, or ''
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5 who may add the user again, if the user leaves by themselves: 1 for any member, 0 for nobody
-- Returns the token of the membership that ended ('' if it was lost), or 'no chat', 'no member', 'no remover',
--   'no owner'
local newest, members, own, log, roster = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local seniority, typing, mutes, info = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local removed, opted_out, hidden, requests = KEYS[10], KEYS[11], KEYS[12], {KEYS[13], KEYS[14]}
local user, remover, request, window, again = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- maximum number of users in each of the lists of former members
local MAX_LISTED = 1000

local is_removal = remover ~= '' and remover ~= user

local function refuse_remover()
  if not is_removal then
    return nil
  end
  local join_id, role = read_membership(roster, remover)
  if not join_id then
    return 'no remover'
  end
  return role ~= 'owner' and 'no owner' or nil
end

local function remove_member()
  redis.call('ZREM', members, user)
  redis.call('HDEL', roster, user)
  redis.call('ZREM', seniority, user)
  redis.call('ZREMRANGEBYLEX', own, '[' .. user .. '\0', '(' .. user .. '\1')
  redis.call('ZREM', typing, user)
  redis.call('HDEL', mutes, user)
  redis.call('SREM', hidden, user)
end

-- The list of former members that restricts who may add the user again; nil if any member may.
local function restricting_list()
  return is_removal and removed or again == '0' and opted_out or nil
end

local function list_user(list, now)
  redis.call('ZADD', list, now, user)
  redis.call('ZREMRANGEBYRANK', list, 0, -MAX_LISTED - 1)
end

-- The recorded answers stay for late repeats.
local function delete_chat()
  redis.call('PEXPIRE', requests[1], window)
  redis.call('PEXPIRE', requests[2], window)
  redis.call('UNLINK', unpack(KEYS, 1, 12))
end

local function make_owner(member)
  if redis.call('HEXISTS', roster, member) == 1 then
    write_role(roster, member, 'owner')
    redis.call('HINCRBY', info, 'owners', 1)
  end
end

-- Another owner is needed if the last one leaves: returns who becomes one. Without the number of owners, a repair
-- decides.
local function remove_owner()
  if redis.call('HEXISTS', info, 'owners') == 1 and redis.call('HINCRBY', info, 'owners', -1) == 0 then
    local successor = redis.call('ZRANGE', seniority, 0, 0)[1]
    if successor then
      make_owner(successor)
      return successor
    end
  end
end

local now = milliseconds()
local recorded = find_answer(request, requests, window, now)
if recorded then
  return recorded
end
local chat = read_chat(newest)
local join_id, role, token = read_listed(roster, user)
local is_listed = join_id or redis.call('ZSCORE', members, user)
if not chat and not is_listed then
  return 'no chat'
end
local refusal = refuse_remover()
if refusal then
  return refusal
end
if not is_listed then
  return 'no member'
end
token = token or ''
local stored, list = chat and first_stored(log, chat.last), restricting_list()
-- A key of another type raises an error here, before the first write.
check_types('HLEN', mutes, info)
check_types('ZCARD', members, own, seniority, typing, list)
check_types('SCARD', hidden)

remove_member()
publish_hint('m', newest)
record_answer(request, token, requests, window, now)
if redis.call('EXISTS', members, roster, seniority) == 0 then
  delete_chat()
  return token
end
if list then
  list_user(list, now)
end
local successor = role == 'owner' and remove_owner()
if chat and redis.call('EXISTS', members) == 1 then
  trim_acked(members, log, stored, chat.last, chat.keep)
end
if chat then
  add_event(info, now, chat.last, is_removal and 'removed' or 'left', is_removal and remover or user, {user})
  if successor then
    add_event(info, now, chat.last, 'owner', '', {successor})
  end
end
return token
