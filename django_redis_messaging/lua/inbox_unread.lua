-- Counts what a member has not read in any number of chats.
--
-- reads only
-- uses _log.lua
-- uses _positions.lua
-- uses _time.lua
--
-- KEYS  1… newest, members, counts, log; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 maximum number of entries in a chat
-- ARGV  4 maximum age of an entry: ms, 0 for none
-- Returns a list with an item for each chat: the number of unread entries, the value of newest if all is acked, or -1
--   if the user is not a member (any more)
local user, author = ARGV[1], ARGV[2]
local limits = {length = tonumber(ARGV[3]), age = tonumber(ARGV[4])}
local now = milliseconds()

local function read_chat(newest, members, counts, log)
  local last, _, __, ___, value = read_newest(newest)
  local position = redis.call('ZSCORE', members, user)
  if not last or not position then
    return -1
  end
  position = tonumber(position)
  if last == position then
    return value
  end
  local first = apply_limits(log, first_id(log, last), last, now, limits)
  return count_unread(counts, log, first, last, position, user, author)
end

local items = {}
for at = 1, #KEYS, 4 do
  items[#items + 1] = read_chat(KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3])
end
return items
