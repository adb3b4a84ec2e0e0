-- Counts what a member has not read in any number of chats and was sent in a period, and reads the latest of it.
-- Deleted entries, and those of hidden authors, don't count: all entries of the period are examined, from the end, as
-- many as one script may; the next one continues below them.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1… the first 8 keys (_chat.lua) of each chat
-- ARGV  1 user
-- ARGV  2-3 limits of the log without bytes (_chat.lua)
-- ARGV  4 beginning of the period: ms; what was sent at this moment is not in it
-- ARGV  5 end of the period: ms; what was sent at this moment is in it
-- ARGV  6 maximum number of entries to return of a chat
-- ARGV  7… JSON of each hidden author; then the id below which entries are examined, or 0 for all; of each chat
-- Returns a list with an item for each chat: 0 if nothing is left to examine, or the chat is muted; -1 if the user is
--   not a member (any more); {error} if it is broken; or {epoch, title, active (ms), number of members, first few
--   members, number of entries that count, id of the lowest entry examined, number of unread entries below it, {id, excerpt
--   of the entry, …} of the latest that count, the newest first}
local user = ARGV[1]
local limits = limits_of(ARGV[2], ARGV[3])
local since, till, max_excerpts = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
-- position in ARGV of the first chat
local chats = #ARGV - #KEYS / 8 + 1
local hidden = {}
for at = 7, chats - 1 do
  hidden[ARGV[at]] = true
end
-- bytes of JSON of the body in an excerpt
local EXCERPT = 512
-- what may be read from all chats: entries, and their bytes; of at least one chat one entry is read
local remaining, remaining_bytes = 1000, 4 * MAX_BYTES
local now = milliseconds()

-- Returns the first id from `first` on that was sent after `ms`.
local function first_after(log, stored, first, chat, ms)
  if tonumber(chat.ms) <= ms then
    return chat.last + 1
  end
  return find_first_kept(log, stored, first, chat.last, function(entry)
    return entry_ms(entry) > ms
  end)
end

local function count_unread_between(own, from, to)
  if from > to then
    return 0
  end
  return to - from + 1 - redis.call('ZLEXCOUNT', own, '[' .. own_entry(user, from), '[' .. own_entry(user, to))
end

local function counts(entry)
  local deleted, size, start = string.match(entry, '^%[%d+,%d+,(%-?)%d+,(%d+),%d+,()')
  return deleted == '' and not hidden[string.sub(entry, start, start + size - 1)]
end

-- Returns the number of the entries from `from` to `to` that count, the lowest id examined, and {id, excerpt, …}.
local function examine(log, stored, from, to)
  from = math.max(from, to - remaining + 1)
  local entries = remaining_bytes > 0 and read_entries_before(log, stored, from, to, remaining_bytes) or {}
  local count, latest = 0, {}
  for at = #entries, 1, -1 do
    local entry = entries[at]
    remaining_bytes = remaining_bytes - #entry
    if counts(entry) then
      count = count + 1
      if #latest < 2 * max_excerpts then
        latest[#latest + 1] = to - #entries + at
        latest[#latest + 1] = excerpt(entry, EXCERPT)
      end
    end
  end
  remaining = remaining - #entries
  return count, to - #entries + 1, latest
end

local function read(below, keys)
  local chat = read_chat(keys.newest)
  local position = read_position(keys.members, user)
  local join_id = read_membership(keys.roster, user)
  if not chat or not position or not join_id then
    return -1
  end
  if tonumber(redis.call('HGET', keys.mutes, user) or 0) > now then
    return 0
  end
  local first, stored = apply_limits(keys.log, first_stored(keys.log, chat.last), chat, now, limits)
  first = math.max(first, position + 1, join_id + 1)
  local from = first_after(keys.log, stored, first, chat, since)
  local to = first_after(keys.log, stored, from, chat, till) - 1
  if below > 0 then
    to = math.min(to, below - 1)
  end
  if from > to then
    return 0
  end
  local count, lowest, latest = examine(keys.log, stored, from, to)
  return {
    chat.epoch, redis.call('HGET', keys.info, 'title') or '', chat.ms,
    redis.call('ZCARD', keys.members), redis.call('ZRANGE', keys.standing, 0, 3),
    count, lowest, count_unread_between(keys.own, from, lowest - 1), latest,
  }
end

local items = {}
for at = 1, #KEYS, 8 do
  items[#items + 1] = isolated(read, tonumber(ARGV[chats + #items]), chat_at({unpack(KEYS, at, at + 7)}))
end
return items
