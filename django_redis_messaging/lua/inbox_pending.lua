-- Reads what a member has not acked in any number of chats, and acks it if requested.
--
-- uses _log.lua
-- uses _positions.lua
-- uses _time.lua
--
-- KEYS  1… newest, members, counts, log; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 ack: 1 or 0
-- ARGV  4 maximum number of entries to read from a chat
-- ARGV  5 maximum number of entries to read from all chats
-- ARGV  6 maximum number of entries in a chat
-- ARGV  7 maximum age of an entry: ms, 0 for none
-- Returns a list with an item for each chat: the value of newest if all is acked, -1 if the user is not a member
--   (any more), or {epoch, id of the first entry, gap, has_more, entry, …}
local user, author, ack = ARGV[1], ARGV[2], ARGV[3] == '1'
local page_size, remaining = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = {length = tonumber(ARGV[6]), age = tonumber(ARGV[7])}
local now = milliseconds()

local function read_chat(newest, members, counts, log)
  local last, _, epoch, keep, value = read_newest(newest)
  local position = redis.call('ZSCORE', members, user)
  if not last or not position then
    return -1
  end
  position = tonumber(position)
  if last == position then
    return value
  end
  local first = apply_limits(log, first_id(log, last), last, now, limits)
  local from = math.max(position + 1, first)
  local to = math.min(last, from + math.min(page_size, remaining) - 1)
  local item = {epoch, from, from - position - 1, to < last and 1 or 0}
  if from <= to then
    for _, entry in ipairs(redis.call('LRANGE', log, from - first, to - first)) do
      item[#item + 1] = entry
    end
    remaining = remaining - (to - from + 1)
  end
  if ack and to > position then
    move_position(members, counts, log, first, last, user, author, to)
    trim_acked(members, log, first, last, keep)
  end
  return item
end

local items = {}
for at = 1, #KEYS, 4 do
  items[#items + 1] = read_chat(KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3])
end
return items
