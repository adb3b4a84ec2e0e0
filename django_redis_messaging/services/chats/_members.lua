-- A chat's roster: HASH member → "first event, join id, joined at (ms), role, join number", space-separated. The member
-- sees the messages after the join id, and the events from the number of the first one on. The join number is greater than
-- that of any membership before, also of a deleted chat with this id, and after Redis has lost data: it is the time in µs,
-- or one more than the latest. The ZSET standing has it, too. A member of a direct chat who has
-- blocked the other one is suspended: the line begins with "suspended ", and the member's score in the ZSET members is
-- half above their position. Others see them as before, but nothing that the member does reaches the chat, or the other
-- way round. After the unblocking the line begins with "unblocked:position:join id:joined at ": what others see of the
-- member, of the time before. While the score is a quarter above an id, they see that position, too.
local SUSPENDED = 'suspended '
-- the first byte of such lines
local SUSPENDED_BYTE, UNBLOCKED_BYTE = 115, 117

local function parse_line(line)
  local event, join_id, joined_at, role, number = string.match(line, '(%d+) (%d+) (%d+) (%a+) (%d+)$')
  return tonumber(join_id), role, number, joined_at, tonumber(event), string.byte(line) == UNBLOCKED_BYTE
end

local function is_suspended(line)
  return string.byte(line) == SUSPENDED_BYTE
end

-- Returns join id, role, join number, joined at, first event, and whether the user joined by an unblocking; nil if the user is
-- not a member, or is suspended.
local function read_membership(roster, member)
  local line = redis.call('HGET', roster, member)
  if line and not is_suspended(line) then
    return parse_line(line)
  end
end

-- As read_membership, for a member on whom others act: the member may be suspended.
local function read_listed(roster, member)
  local line = redis.call('HGET', roster, member)
  if line then
    return parse_line(line)
  end
end

-- Returns position, join id and joined at from before the member blocked the other one; nil if they never did.
local function before_block(line)
  return string.match(line, 'unblocked:(%d+):(%d+):(%d+) ')
end

-- Returns the position of a member as others see it, for a score that is not a whole number.
local function shown_position(roster, member, score)
  if score % 1 == 0.25 then
    local line = redis.call('HGET', roster, member)
    score = line and before_block(line) or 0
  end
  return math.floor(score)
end

local function membership_line(event, join_id, joined_at, role, number)
  return table.concat({event, join_id, joined_at, role, number}, ' ')
end

local function write_role(roster, member, role)
  local line = string.gsub(redis.call('HGET', roster, member), '(%d+ %d+ %d+) %a+', '%1 ' .. role)
  redis.call('HSET', roster, member, line)
end

-- The join number in a roster line.
local function join_number_of(line)
  return string.match(line, '(%d+)$')
end

-- Whether a user is a member who is not suspended.
local function is_active(members, user)
  local score = redis.call('ZSCORE', members, user)
  return score and score % 1 ~= 0.5
end

-- Returns why a user cannot act as a member: 'no chat' or 'no member'; nil if the user can.
local function refuse_unless_member(info, members, user)
  if redis.call('EXISTS', info) == 0 then
    return 'no chat'
  end
  return not is_active(members, user) and 'no member' or nil
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
