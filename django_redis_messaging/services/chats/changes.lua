-- Reads what changed in a chat: messages after a cursor, messages edited since, and read positions; for one or several
-- users who have read the same before. What is equal for all is read as for the one of them who joined first.
--
-- reads only
-- uses _chat.lua
-- uses _info.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 id of the cursor, or a bare id
-- ARGV  2 epoch of the cursor, or '' for a bare id
-- ARGV  3 stamp of the cursor (ms-nonce), or ''
-- ARGV  4 number of edits that the readers know, or '' for none
-- ARGV  5 fingerprint of the title and the positions that the readers know, or '' for none
-- ARGV  6 maximum number of new messages
-- ARGV  7 maximum number of bytes of all entries
-- ARGV  8 maximum number of members whose names and positions are read
-- ARGV  9 how long a member counts as typing: ms
-- ARGV  10 number of the last event that the readers know, or '' for none
-- ARGV  11-13 limits of the log (_chat.lua)
-- ARGV  14 whether members see the positions of others: 1 or 0
-- ARGV  15… users
-- Returns {epoch, id of the first new entry, stamp of the entry before it if there is none, gap, has_more, reset, title,
--   number of members, id of the newest entry, its sender as JSON or '', edits, edits_missed, fingerprint,
--   {member, position or '-' if it is hidden, …}, {member among them who joined after the newest entry, …}, {number,
--   id, number, id, …} of the edited entries, {reader, …}, {member who is typing, …}, number of the latest event,
--   {event, …} after those known (_info.lua), {new entry, …}, {edited entry, …}}, or 'no chat', 'no member' if no user is
--   a member. A reader is {id at joining, ms of joining, number of the first event that the user
--   sees, role, id of the oldest entry that the user can see, position, unread, ms until which the user has muted the chat
--   or 0, 1 or 0: whether the user joined by unblocking the other member}, or 0 if the user is not a member.
local keys = chat_at(KEYS)
local cursor = {id = tonumber(ARGV[1]), epoch = ARGV[2], stamp = ARGV[3]}
local known_edits, known_fingerprint, known_event = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[10])
local page_size, max_bytes, max_members, typing_window =
  tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local limits = limits_of(ARGV[11], ARGV[12], ARGV[13])
local shows_positions, FIRST_USER, MAX_TYPISTS = ARGV[14] == '1', 15, 10
local size = 0

-- Adds an entry to a list of the answer. Returns false if it doesn't fit; the first one always does.
local function add_entry(list, id, stored)
  local entry = redis.call('LINDEX', keys.log, id - stored)
  if size > 0 and size + #entry > max_bytes then
    return false
  end
  list[#list + 1], size = entry, size + #entry
  return true
end

-- Returns the memberships of the users by their names, and one that sees what any of them sees.
local function read_memberships()
  local memberships, viewer = {}, nil
  for at = FIRST_USER, #ARGV do
    local join_id, role, _, joined_at, event, resumed = read_membership(keys.roster, ARGV[at])
    if join_id then
      local one = {user = ARGV[at], join_id = join_id, role = role, joined_at = tonumber(joined_at), event = event}
      one.resumed = resumed
      memberships[one.user], viewer = one, viewer or one
      if join_id < viewer.join_id or event < viewer.event then
        join_id, event = math.min(join_id, viewer.join_id), math.min(event, viewer.event)
        viewer = {user = one.user, join_id = join_id, event = event}
      end
    end
  end
  return memberships, viewer
end

-- Replaces the positions that others don't see.
local function hide_positions(names, positions)
  local hides, is_hidden = redis.call('SMISMEMBER', keys.hidden, unpack(names)), {}
  for at, name in ipairs(names) do
    is_hidden[name] = hides[at] == 1
  end
  for at = 1, #positions, 2 do
    if not shows_positions or is_hidden[positions[at]] then
      positions[at + 1] = '-'
    end
  end
end

-- Returns a number that stands for the title, the members and their positions, by what changes with them; not for the
-- positions that are hidden, nor for those that senders have moved by sending, which come with the new entries.
local function fingerprint_of(...)
  return tonumber(string.sub(redis.sha1hex(table.concat({...}, ' ')), 1, 12), 16)
end

-- Returns the positions of the longest-standing members.
-- rare
local function read_positions()
  local names, positions = redis.call('ZRANGE', keys.standing, 0, max_members - 1), {}
  if #names > 0 then
    for at, position in ipairs(redis.call('ZMSCORE', keys.members, unpack(names))) do
      if position then -- otherwise one of the keys was lost
        position = tonumber(position)
        positions[#positions + 1] = names[at]
        positions[#positions + 1] = position % 1 == 0 and position or shown_position(keys.roster, names[at], position)
      end
    end
    if not shows_positions or redis.call('EXISTS', keys.hidden) == 1 then
      hide_positions(names, positions)
    end
  end
  return positions
end

-- The size of the positions in the answer.
local function bytes_of(positions)
  local bytes = 0
  for _, value in ipairs(positions) do
    bytes = bytes + #tostring(value)
  end
  return bytes
end

-- Returns the members who are typing, the latest first; none from before the clock was set back.
local function read_typists(now)
  return redis.call('ZREVRANGEBYSCORE', keys.typing, now + typing_window, '(' .. now, 'LIMIT', 0, MAX_TYPISTS)
end

-- Returns the sender of the newest entry as JSON; '' if the user can't see it.
local function newest_sender(stored, last, oldest)
  if last < oldest then
    return ''
  end
  local entry = redis.call('LINDEX', keys.log, last - stored)
  local length, start = string.match(entry, '^%[%d+,%d+,%-?%d+,(%d+),%d+,()')
  return string.sub(entry, start, start + length - 1)
end

-- Returns those of the members who joined after the newest entry: their position is at it, but they have not read it.
-- `sender`: that of the entry as JSON. Directly after it was sent, only the sender is at it: then nothing is read.
-- rare
local function read_newcomers(positions, last, sender)
  local names, newcomers = {}, {}
  for at = 1, sender ~= '' and #positions or 0, 2 do
    if positions[at + 1] ~= '-' and positions[at + 1] >= last and '"' .. positions[at] .. '"' ~= sender then
      names[#names + 1] = positions[at]
    end
  end
  for at, line in ipairs(#names > 0 and redis.call('HMGET', keys.roster, unpack(names)) or {}) do
    local _, first_join_id = before_block(line or '')
    if line and tonumber(first_join_id or parse_line(line)) >= last then
      newcomers[#newcomers + 1] = names[at]
    end
  end
  return newcomers
end

-- Returns what concerns each of the users alone.
local function read_readers(memberships, first, last, now)
  local readers = {}
  for at = FIRST_USER, #ARGV do
    local user, one, reader = ARGV[at], memberships[ARGV[at]], 0
    if one then
      local position = read_position(keys.members, user) or one.join_id
      local muted_until = tonumber(redis.call('HGET', keys.mutes, user) or 0)
      reader = {
        one.join_id, one.joined_at, one.event, one.role, math.max(first, one.join_id + 1), position,
        count_unread(keys.own, first, last, position, user), muted_until > now and muted_until or 0,
        one.resumed and 1 or 0,
      }
    end
    readers[#readers + 1] = reader
  end
  return readers
end

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local memberships, viewer = read_memberships()
if not viewer then
  return 'no member'
end
local now, last = milliseconds(), chat.last
local first, stored = apply_retention(chat, keys.members, keys.log, now, limits)
local reset = not is_cursor_valid(chat, keys.log, stored, cursor)
local title, edits, event, moved = unpack(redis.call('HMGET', keys.info, 'title', 'edits', 'event', 'moved'))
title, edits, event = title or '', tonumber(edits or 0), tonumber(event or 0)
local count = redis.call('ZCARD', keys.members)
local fingerprint = fingerprint_of(chat.epoch, event, count, shows_positions and moved or '-', title)
local after = reset and (read_position(keys.members, viewer.user) or 0) or cursor.id
after = math.max(math.min(after, last), viewer.join_id)
local oldest, from = math.max(first, viewer.join_id + 1), math.max(after + 1, first)
local typists = read_typists(now)
local events = events_since(keys.events, event, not reset and known_event or nil, viewer.event)
-- With the positions, pages tell members of the same name apart who are typing or in an event.
local positions = {}
if from <= last or digits(fingerprint) ~= known_fingerprint or #typists > 0 or event ~= (known_event or event) then
  positions = read_positions()
end
max_bytes = max_bytes - bytes_of(positions)

local new_entries, edited_entries = {}, {}
local to = from - 1
while to < math.min(from + page_size - 1, last) and add_entry(new_entries, to + 1, stored) do
  to = to + 1
end
local more = to < last

-- Messages above `after` are or will be among the new ones, as they are now.
local missed, edited = edits_since(keys.edits, edits, known_edits)
local added, number = {}, edits
if not missed and not reset then
  for _, edit in ipairs(edited) do
    if edit.id >= oldest and edit.id < from then
      if not add_entry(edited_entries, edit.id, stored) then
        number = added[1] and added[#added - 1] or known_edits
        more = true
        break
      end
      added[#added + 1] = edit.number
      added[#added + 1] = edit.id
    end
  end
end

local stamp = from > to and stamp_of(chat, keys.log, stored, from - 1) or ''
local sender, newcomers = '', {}
if positions[1] then
  sender = newest_sender(stored, last, oldest)
  newcomers = read_newcomers(positions, last, sender)
end
return {
  chat.epoch, from, stamp, from - after - 1, more and 1 or 0, reset and 1 or 0, title, count, last, sender, number,
  missed and 1 or 0, fingerprint, positions, newcomers, added,
  read_readers(memberships, first, last, now), typists, event,
  events, new_entries, edited_entries,
}
