-- Makes users members who see the messages sent from now on: all of them, or none.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 how they join: added by a member, alone, or returning (alone to a chat that need not be open)
-- ARGV  2 member who adds the users; or the user who joins alone
-- ARGV  3 request id, of ARGV[2]
-- ARGV  4 recorded if nobody joined: 1 if the caller may repeat the request, otherwise 0
-- ARGV  5 request window: ms
-- ARGV  6 maximum number of members of a chat
-- ARGV  7 number of users
-- ARGV  8… users, without duplicates: at most 500; then those of them who hide what they have read
-- Returns {epoch, 1 or 0: whether ARGV[2] is a member (now), users who joined, join number, …}: the users who
--   joined are separated by NUL, also for a repeat; the number is '' for a user who is not a member (any more). Or 'no chat',
--   'not added' (ARGV[2] is no member), 'closed', 'full', 'damaged' (keys of the chat were lost); or, followed by NUL
--   and a user, 'removed' or 'opted out'
local keys = chat_at(KEYS)
local way, asker, request, records_nothing = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local window, max_members = tonumber(ARGV[5]), tonumber(ARGV[6])
local last_user = 7 + tonumber(ARGV[7])
local users, hiding = {unpack(ARGV, 8, last_user)}, {unpack(ARGV, last_user + 1)}

-- Returns the join numbers of the users, '' for those who are not members, and the latter.
local function read_numbers()
  local numbers, others = {}, {}
  if #users > 0 then
    for at, line in ipairs(redis.call('HMGET', keys.roster, unpack(users))) do
      numbers[at] = line and join_number_of(line) or ''
      others[#others + 1] = not line and users[at] or nil
    end
  end
  return numbers, others
end

-- Only owners can add a user again whom an owner removed. A user who left and asked not to be added can only return alone.
local function refuse_former_member(others)
  local _, role = read_membership(keys.roster, asker)
  local was_removed, has_opted_out = redis.call('ZMSCORE', keys.removed, unpack(others)),
    redis.call('ZMSCORE', keys.opted_out, unpack(others))
  for at, user in ipairs(others) do
    if was_removed[at] and role ~= 'owner' then
      return 'removed\0' .. user
    elseif has_opted_out[at] and way == 'added' then
      return 'opted out\0' .. user
    end
  end
end

-- The event of the joining is the first one that the users see. `number`: the join number of the first of them.
local function write_members(others, chat, number, event, now)
  local positions, order, lines = {}, {}, {}
  for at, user in ipairs(others) do
    positions[#positions + 1], positions[#positions + 2] = chat.last, user
    local own = digits(number + at - 1)
    order[#order + 1], order[#order + 2] = own, user
    lines[#lines + 1], lines[#lines + 2] = user, membership_line(event, chat.last, now, 'member', own)
  end
  redis.call('HSET', keys.roster, unpack(lines))
  redis.call('ZADD', keys.members, unpack(positions))
  redis.call('HSET', keys.info, 'joins', digits(number + #others - 1))
  redis.call('ZADD', keys.standing, unpack(order))
  redis.call('ZREM', keys.removed, unpack(others))
  redis.call('ZREM', keys.opted_out, unpack(others))
  if #hiding > 0 then
    redis.call('SADD', keys.hidden, unpack(hiding))
  end
end

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local us = microseconds()
local now = math.floor(us / 1000)
-- No name contains a NUL, so the same request id of another user, or of another operation, is a different request.
request = 'join\0' .. asker .. '\0' .. request
local recorded = find_answer(request, keys.requests, window, now)
local is_member = is_active(keys.members, asker)
local numbers, others = read_numbers()
if recorded then
  return {chat.epoch, is_member and 1 or 0, recorded, unpack(numbers)}
end
if way == 'added' and not is_member then
  return 'not added'
end
if #others == 0 then
  if records_nothing then
    record_answer_once(request, '', keys.requests, window, now)
  end
  return {chat.epoch, 1, '', unpack(numbers)}
end
if way == 'alone' and redis.call('HGET', keys.info, 'open') ~= '1' then
  return 'closed'
end
local refusal = refuse_former_member(others)
if refusal then
  return refusal
end
local count, joins, event = redis.call('ZCARD', keys.members), unpack(redis.call('HMGET', keys.info, 'joins', 'event'))
if count + #others > max_members then
  return 'full'
end
-- The acks of a new member would remove messages that members have not read whose positions were lost.
if not joins or count ~= redis.call('HLEN', keys.roster) or count ~= redis.call('ZCARD', keys.standing) then
  return 'damaged'
end
if #hiding > 0 then
  redis.call('SCARD', keys.hidden)
end
redis.call('LLEN', keys.events)
-- Every key has been read by now: a key of another type has raised an error before the first write.

record_answer_once(request, table.concat(others, '\0'), keys.requests, window, now)
local number = math.max(joins + 1, us)
write_members(others, chat, number, (event or 0) + 1, now)
publish_hint('m', keys.newest)
add_event(keys.info, keys.events, now, chat.last, way == 'added' and 'added' or 'joined', asker, others)
for at, known in ipairs(numbers) do
  if known == '' then
    numbers[at], number = digits(number), number + 1
  end
end
return {chat.epoch, 1, table.concat(others, '\0'), unpack(numbers)}
