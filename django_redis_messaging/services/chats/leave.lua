-- Ends a membership. The last member to leave deletes the chat; if the last owner leaves, the longest-standing
-- member becomes an owner. Also works if some of the chat's keys were lost, so that no repair restores the membership.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 owner who removes the user, or ''
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5 who may add the user again, if the user leaves by themselves: 1 for any member, 0 for nobody
-- Returns the join number of the membership that ended ('' if it was lost), or 'no chat', 'no member', 'no remover',
--   'no owner'
local keys = chat_at(KEYS)
local user, remover, request, window, again = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

-- maximum number of users in each of the lists of former members
local MAX_LISTED = 1000

local is_removal = remover ~= '' and remover ~= user

local function refuse_remover()
  if not is_removal then
    return nil
  end
  local join_id, role = read_membership(keys.roster, remover)
  if not join_id then
    return 'no remover'
  end
  return role ~= 'owner' and 'no owner' or nil
end

local function remove_member()
  redis.call('ZREM', keys.members, user)
  redis.call('HDEL', keys.roster, user)
  redis.call('ZREM', keys.standing, user)
  redis.call('ZREMRANGEBYLEX', keys.own, '[' .. user .. '\0', '(' .. user .. '\1')
  redis.call('ZREM', keys.typing, user)
  redis.call('HDEL', keys.mutes, user)
  redis.call('SREM', keys.hidden, user)
end

-- The list of former members that restricts who may add the user again; nil if any member may.
local function restricting_list()
  return is_removal and keys.removed or again == '0' and keys.opted_out or nil
end

local function list_user(list, now)
  redis.call('ZADD', list, now, user)
  redis.call('ZREMRANGEBYRANK', list, 0, -MAX_LISTED - 1)
end

-- The recorded answers stay for late repeats.
local function delete_chat()
  redis.call('PEXPIRE', keys.requests[1], window)
  redis.call('PEXPIRE', keys.requests[2], window)
  redis.call('UNLINK', keys_to_delete(KEYS))
end

local function make_owner(member)
  if redis.call('HEXISTS', keys.roster, member) == 1 then
    write_role(keys.roster, member, 'owner')
    redis.call('HINCRBY', keys.info, 'owners', 1)
  end
end

-- Another owner is needed if the last one leaves: returns who becomes one. Without the number of owners, a repair
-- decides.
local function remove_owner()
  if redis.call('HEXISTS', keys.info, 'owners') == 1 and redis.call('HINCRBY', keys.info, 'owners', -1) == 0 then
    local successor = redis.call('ZRANGE', keys.standing, 0, 0)[1]
    if successor then
      make_owner(successor)
      return successor
    end
  end
end

local now = milliseconds()
local recorded = find_answer(request, keys.requests, window, now)
if recorded then
  return recorded
end
local chat = read_chat(keys.newest)
local join_id, role, number = read_listed(keys.roster, user)
local is_listed = join_id or redis.call('ZSCORE', keys.members, user)
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
number = number or ''
local stored, list = chat and first_stored(keys.log, chat.last), restricting_list()
-- A key of another type raises an error here, before the first write.
check_types('HLEN', keys.mutes, keys.info)
check_types('ZCARD', keys.members, keys.own, keys.standing, keys.typing, list)
check_types('SCARD', keys.hidden)
check_types('LLEN', keys.events)

remove_member()
publish_hint('m', keys.newest)
record_answer(request, number, keys.requests, window, now)
if redis.call('EXISTS', keys.members, keys.roster, keys.standing) == 0 then
  delete_chat()
  return number
end
if list then
  list_user(list, now)
end
local successor = role == 'owner' and remove_owner()
if chat and redis.call('EXISTS', keys.members) == 1 then
  trim_acked(keys.members, keys.log, stored, chat.last, chat.keep)
end
if chat then
  add_event(keys.info, keys.events, now, chat.last, is_removal and 'removed' or 'left', is_removal and remover or user, {user})
  if successor then
    add_event(keys.info, keys.events, now, chat.last, 'owner', '', {successor})
  end
end
return number
