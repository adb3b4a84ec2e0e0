-- Reads what a member has not acked, in any number of chats; acks it too where that is wanted.
--
-- uses _clock.lua
-- uses _log.lua
-- uses _positions.lua
--
-- KEYS  1… newest, members, counts, log; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 most entries of a chat
-- ARGV  4 most entries of all chats
-- ARGV  5 ack: 1 or 0
-- ARGV  6 most entries a chat holds
-- ARGV  7 greatest age of an entry: ms, 0 for any
-- Returns a list with an item for each chat: the line of newest where all is acked, -1 not a member (any more), or
--   {epoch, id of the first entry, gap, has_more, entry, …}
local limit, left, ack = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local max_length, max_age, now = tonumber(ARGV[6]), tonumber(ARGV[7]), clock()

local function look(newest, members, counts, log)
  local last, _, epoch, keep, line = newest_of(newest)
  local position = redis.call('ZSCORE', members, ARGV[1])
  if not last or not position then
    return -1
  end
  position = tonumber(position)
  if last == position then
    return line
  end
  local first = limited(log, first_of(log, last), last, now, max_length, max_age)
  local from = math.max(position + 1, first)
  local to = math.min(last, from + math.min(limit, left) - 1)
  local found = {epoch, from, from - position - 1, to < last and 1 or 0}
  if from <= to then
    for _, entry in ipairs(redis.call('LRANGE', log, from - first, to - first)) do
      found[#found + 1] = entry
    end
    left = left - (to - from + 1)
  end
  if ack and to > position then
    move(members, counts, log, first, last, ARGV[1], ARGV[2], to)
    released(members, log, first, last, keep)
  end
  return found
end

local items = {}
for at = 1, #KEYS, 4 do
  items[#items + 1] = look(KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3])
end
return items
