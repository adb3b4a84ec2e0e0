-- A chat's roster: HASH member → "first event, join id, joined at (ms), role, token", space-separated. The member sees
-- the messages after the join id, and the events from the number of the first one on.

-- Returns join id, role, token, joined at and first event; nil if the user is not a member.
local function read_membership(roster, member)
  local line = redis.call('HGET', roster, member)
  if not line then
    return nil
  end
  local event, join_id, joined_at, role, token = string.match(line, '^(%d+) (%d+) (%d+) (%a+) (%S+)$')
  return tonumber(join_id), role, token, joined_at, tonumber(event)
end

local function membership_line(event, join_id, joined_at, role, token)
  return table.concat({event, join_id, joined_at, role, token}, ' ')
end

local function write_membership(roster, member, event, join_id, joined_at, role, token)
  redis.call('HSET', roster, member, membership_line(event, join_id, joined_at, role, token))
end

-- The token of a roster line.
local function token_of(line)
  return string.match(line, '(%S+)$')
end

-- Returns why a user cannot act as a member: 'no chat' or 'no member'; nil if the user can.
local function refuse_unless_member(info, members, user)
  if redis.call('EXISTS', info) == 0 then
    return 'no chat'
  end
  return not redis.call('ZSCORE', members, user) and 'no member' or nil
end

-- Returns why a user cannot act as an owner: 'no chat', 'no member' or 'no owner'; nil if the user can. `key` is
-- any key that every chat has.
local function refuse_unless_owner(key, roster, user)
  if redis.call('EXISTS', key) == 0 then
    return 'no chat'
  end
  local join_id, role = read_membership(roster, user)
  if not join_id then
    return 'no member'
  end
  return role ~= 'owner' and 'no owner' or nil
end
