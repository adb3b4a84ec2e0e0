-- Creates a chat: its members at position 0, and the first message if there is one.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-16 chat (_chat.lua)
-- ARGV  1 request id, of the sender
-- ARGV  2 request window: ms
-- ARGV  3 title
-- ARGV  4 open: 1 or 0
-- ARGV  5 number of entries kept for scroll-back
-- ARGV  6 content of the first entry (everything after ms), or ''
-- ARGV  7 maximum age of an entry: ms, 0 for none
-- ARGV  8 number of users
-- ARGV  9… users, without duplicates, the sender first: at most 10,000; then those of them who hide what they have read
-- Returns {epoch}, which is also the join number of the first user; the others follow. For a repeat {epoch, join number,
--   …}, with '' for a user who is not a member (any more). Or 'exists'
local keys = chat_at(KEYS)
local request, window = ARGV[1], tonumber(ARGV[2])
local title, open, keep, content, limits = ARGV[3], ARGV[4], ARGV[5], ARGV[6], {age = tonumber(ARGV[7])}
-- unpack takes less than 8000 values: a command gets the arguments of at most 1000 users.
local first_user, page = 9, 1000
local last_user = first_user + tonumber(ARGV[8]) - 1

-- The reply to a repeat. Since the first request, the chat may have been created anew and members may have left.
local function describe_existing(first_epoch)
  local reply = {string.match(redis.call('GET', keys.newest) or '', '^%d+%-%d+%-%d+%-(%d+)') or first_epoch}
  for from = first_user, last_user, page do
    for _, line in ipairs(redis.call('HMGET', keys.roster, unpack(ARGV, from, math.min(from + page - 1, last_user)))) do
      reply[#reply + 1] = line and join_number_of(line) or ''
    end
  end
  return reply
end

local function write_chat(last, now, epoch, total)
  local joins = digits(epoch + last_user - first_user)
  redis.call('SET', keys.newest, newest_value(last, now, content, epoch, keep, total, limits.age))
  redis.call('HSET', keys.info, 'created', now, 'title', title, 'open', open, 'owners', 1, 'joins', joins, 'edits', 0)
end

local function write_members(now, epoch, from, to)
  local positions, order, lines = {}, {}, {}
  for at = from, to do
    local user, role = ARGV[at], at == first_user and 'owner' or 'member'
    local number = digits(epoch + at - first_user)
    positions[#positions + 1], positions[#positions + 2] = 0, user
    order[#order + 1], order[#order + 2] = number, user
    lines[#lines + 1], lines[#lines + 2] = user, membership_line(1, 0, now, role, number)
  end
  redis.call('ZADD', keys.members, unpack(positions))
  redis.call('ZADD', keys.standing, unpack(order))
  redis.call('HSET', keys.roster, unpack(lines))
end

local function write_first_entry(entry, now)
  redis.call('RPUSH', keys.log, entry)
  set_expiry(keys.log, '0', now, limits.age)
  redis.call('ZADD', keys.members, 1, ARGV[first_user])
end

local us = microseconds()
local now, epoch = math.floor(us / 1000), string.format('%.0f', us)
-- No name contains a NUL, so the same request id of another user, or of another operation, is a different request.
request = 'create\0' .. ARGV[first_user] .. '\0' .. request
local recorded = find_answer(request, keys.requests, window, now)
if recorded then
  return describe_existing(recorded)
end
if redis.call('EXISTS', keys.newest, keys.members, keys.own, keys.log, keys.roster, keys.standing, keys.info, keys.removed,
  keys.opted_out, keys.hidden, keys.edits, keys.events) > 0 then
  return 'exists'
end
record_answer_once(request, epoch, keys.requests, window, now)
local entry, size = new_entry(now, content, 0)
write_chat(content == '' and 0 or 1, now, epoch, content == '' and 0 or size)
for from = first_user, last_user, page do
  write_members(now, epoch, from, math.min(from + page - 1, last_user))
end
for from = last_user + 1, #ARGV, page do
  redis.call('SADD', keys.hidden, unpack(ARGV, from, math.min(from + page - 1, #ARGV)))
end
if content ~= '' then
  write_first_entry(entry, now)
end
return {epoch}
