-- Reads what a member has not acked in any number of chats, and acks it if requested.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _positions.lua
-- uses common/_hints.lua
-- uses common/_time.lua
--
-- KEYS  1… of each chat: newest, members, own, log, info, hidden
-- ARGV  1 user
-- ARGV  2 ack: 1 or 0
-- ARGV  3 maximum number of entries to read from a chat
-- ARGV  4 maximum number of entries to read from all chats
-- ARGV  5-7 limits of the log (_chat.lua)
-- ARGV  8 random number, see count_move in _positions.lua
-- ARGV  9… what the user has seen; of each chat
-- Returns a list with an item for each chat: the value of newest if all is acked and nothing was lost, or the
--   membership is suspended; -1 if the user is not a member (any more); {error} if the chat is broken; or {value of
--   newest, id of the first entry, stamp of the entry before it, gap, has_more, reset, {entry, …}}
local user, ack = ARGV[1], ARGV[2] == '1'
local page_size, remaining = tonumber(ARGV[3]), tonumber(ARGV[4])
local limits, step = limits_of(ARGV[5], ARGV[6], ARGV[7]), ARGV[8]
local now = milliseconds()
-- maximum size of the entries from all chats: bytes
local remaining_bytes = 16 * MAX_BYTES

local function read(seen, newest, members, own, log, info, hidden)
  local chat = read_chat(newest)
  local position, suspended_score = read_position(members, user)
  if not chat or not position then
    return chat and suspended_score and chat.value or -1
  end
  local last, stored = chat.last, first_stored(log, chat.last)
  local reset = has_lost_data(seen, position, chat, log, stored)
  if last == position and not reset then
    return chat.value
  end
  local first
  first, stored = apply_limits(log, stored, chat, now, limits)
  local from = math.max(position + 1, first)
  local entries = {}
  if remaining_bytes > 0 then
    local to = math.min(last, from + math.min(page_size, remaining) - 1)
    entries = read_entries(log, stored, from, to, MAX_BYTES)
  end
  local to = from + #entries - 1
  local stamp = stamp_of(chat, log, stored, from - 1)
  for _, entry in ipairs(entries) do
    remaining_bytes = remaining_bytes - #entry
  end
  remaining = remaining - #entries
  -- Without entries because the bytes are used up, the gap before them is reported by a later reading.
  if ack and to > position and (#entries > 0 or to == last) then
    move_position(members, own, user, to)
    count_move(info, hidden, user, step)
    publish_hint('a', newest, user)
    trim_acked(members, log, stored, last, chat.keep)
  end
  return {chat.value, from, stamp, from - position - 1, to < last and 1 or 0, reset and 1 or 0, entries}
end

local items = {}
for at = 1, #KEYS, 6 do
  items[#items + 1] = isolated(read, ARGV[9 + #items], unpack(KEYS, at, at + 5))
end
return items
