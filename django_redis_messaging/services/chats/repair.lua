-- Rebuilds keys of a chat that were lost, as a whole or in part, from the others. An intact chat is not changed.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_time.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 number of entries kept for scroll-back, if it was lost
-- Returns the names of the keys that were rebuilt; or 'no chat', or 'no members' if both the members and the roster
--   are lost: then nothing can be rebuilt
local keys = chat_at(KEYS)
local keep = ARGV[1]
local FIELDS = {'created', 'title', 'open', 'owners', 'joins', 'edits'}

local function is_intact(chat, values)
  for at = 1, #FIELDS do
    if not values[at] then
      return false
    end
  end
  local count = redis.call('HLEN', keys.roster)
  return chat and count > 0 and redis.call('ZCARD', keys.members) == count
    and redis.call('ZCARD', keys.standing) == count
end

-- Returns a ZSET as a table member → score.
local function read_scores(key)
  local scores, flat = {}, redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for at = 1, #flat, 2 do
    scores[flat[at]] = tonumber(flat[at + 1])
  end
  return scores
end

-- Returns all members, the longest-standing first, with what is left of their data. Without a roster, a member sees
-- only messages above its position: nobody may see messages from before it joined. Also returns the order, and users
-- in the roster with a line that is not that of a member.
local function read_members(now)
  local list, positions, order, others = {}, read_scores(keys.members), read_scores(keys.standing), {}
  local flat = redis.call('HGETALL', keys.roster)
  for at = 1, #flat, 2 do
    local user, line = flat[at], flat[at + 1]
    local join_id, role, number, joined_at, event = parse_line(line)
    if join_id then
      local one = {user = user, join_id = join_id, joined_at = tonumber(joined_at), role = role, line = line}
      one.event = event
      one.position, positions[user], one.order = positions[user], nil, order[user] or tonumber(number)
      list[#list + 1] = one
    elseif not positions[user] then
      others[#others + 1] = user
    end
  end
  for user, position in pairs(positions) do
    local join_id = math.floor(position)
    list[#list + 1] = {user = user, join_id = join_id, joined_at = now, position = position, order = order[user]}
  end
  table.sort(list, function(a, b)
    if a.order ~= b.order then
      return (a.order or math.huge) < (b.order or math.huge)
    elseif a.join_id ~= b.join_id then
      return a.join_id < b.join_id
    elseif a.role ~= b.role then
      return a.role == 'owner'
    end
    return a.user < b.user
  end)
  return list, order, others
end

local rebuilt, is_rebuilt = {}, {}

local function write(name, ...)
  redis.call(...)
  if not is_rebuilt[name] then
    rebuilt[#rebuilt + 1], is_rebuilt[name] = name, true
  end
end

-- Other ids may belong to the entries now: the new epoch lets readers start anew.
local function write_newest(list, epoch, now)
  local last, entry = redis.call('LLEN', keys.log), redis.call('LINDEX', keys.log, -1)
  for _, one in ipairs(list) do
    last = math.max(last, one.join_id, math.floor(one.position or 0))
  end
  for _, sent in ipairs(redis.call('ZRANGE', keys.own, 0, -1)) do
    last = math.max(last, tonumber(string.sub(sent, -16)) or 0)
  end
  local ms, nonce = string.match(entry or '', '^%[(%d+),(%d+)')
  local limits, offset, size = {age = redis.call('PTTL', keys.log)}, read_extent(entry or '')
  local total = (offset or 0) + (size or 0)
  write('newest', 'SET', keys.newest, newest_value(last, ms or now, nonce or '0', epoch, keep, total, limits.age))
  redis.call('UNLINK', keys.own)
end

-- Completes the first events that members see: where they were lost, only the following ones. Returns the number of the
-- latest event; if that was lost, one after which all members see the next event.
local function complete_events(list, stored)
  local latest = stored
  for _, one in ipairs(list) do
    latest = math.max(latest, (one.event or 1) - 1)
  end
  for _, one in ipairs(list) do
    one.event = one.event or latest + 1
  end
  return latest
end

-- Returns the number of owners. If nobody is left, the longest-standing member becomes one.
local function write_roster(list)
  local owners = 0
  for _, one in ipairs(list) do
    owners = owners + (one.role == 'owner' and 1 or 0)
  end
  if owners == 0 then
    list[1].role, list[1].line, owners = 'owner', nil, 1
  end
  for _, one in ipairs(list) do
    if not one.line then
      local number = digits(one.order)
      local line = membership_line(one.event, one.join_id, one.joined_at, one.role or 'member', number)
      line = one.position % 1 == 0.5 and SUSPENDED .. line or line
      write('roster', 'HSET', keys.roster, one.user, line)
    end
  end
  return owners
end

-- Completes the join numbers: those that were lost are later than all others. Returns the highest one.
local function complete_numbers(list, joins, us)
  local highest = joins
  for _, one in ipairs(list) do
    highest = math.max(highest, one.order or 0)
  end
  for _, one in ipairs(list) do
    if not one.order then
      highest = math.max(highest + 1, us)
      one.order = highest
    end
  end
  return highest
end

-- `order`: the scores of the ZSET before.
local function write_standing(list, order)
  for _, one in ipairs(list) do
    if order[one.user] ~= one.order then
      write('standing', 'ZADD', keys.standing, one.order, one.user)
    end
    order[one.user] = nil
  end
  for user in pairs(order) do
    write('standing', 'ZREM', keys.standing, user)
  end
end

local function write_info(list, values, owners, highest, now)
  local created = now
  for _, one in ipairs(list) do
    created = math.min(created, one.joined_at)
  end
  local wanted = {values[1] or created, values[2] or '', values[3] or 0, owners, digits(highest), values[6] or 0}
  for at, field in ipairs(FIELDS) do
    if values[at] ~= tostring(wanted[at]) then
      write('info', 'HSET', keys.info, field, wanted[at])
    end
  end
end

local chat, values = read_chat(keys.newest), redis.call('HMGET', keys.info, unpack(FIELDS))
chat = chat and chat.last and chat
if is_intact(chat, values) then
  return {}
end
local us = microseconds()
local now = math.floor(us / 1000)
local list, order, others = read_members(now)
if #list == 0 then
  local has_rest = redis.call('EXISTS', keys.newest, keys.own, keys.log, keys.standing, keys.info, keys.removed,
    keys.opted_out, keys.edits, keys.events) > 0
  return has_rest and 'no members' or 'no chat'
end
redis.call('LLEN', keys.log)
local stored_event = redis.call('HGET', keys.info, 'event')
local event = tonumber(stored_event or 0)
-- Every key has been read by now: a key of another type has raised an error before the first write.

if not chat then
  write_newest(list, string.format('%.0f', us), now)
end
for _, one in ipairs(list) do
  if not one.position then
    one.position = one.join_id + (is_suspended(one.line) and 0.5 or before_block(one.line) and 0.25 or 0)
    write('members', 'ZADD', keys.members, one.position, one.user)
  end
end
for _, user in ipairs(others) do
  write('roster', 'HDEL', keys.roster, user)
end
-- What is listed by numbers goes with the number of the latest one.
if not values[6] then
  redis.call('UNLINK', keys.edits)
end
if not stored_event then
  redis.call('UNLINK', keys.events)
end
local latest = complete_events(list, event)
local highest = complete_numbers(list, tonumber(values[5] or 0), us)
local owners = write_roster(list)
write_standing(list, order)
write_info(list, values, owners, highest, now)
if latest > event then
  write('info', 'HSET', keys.info, 'event', latest)
end
redis.call('HSET', keys.info, 'moved', now) -- see count_move in _positions.lua
return rebuilt
