-- Counts what a member has not read, in any number of chats.
--
-- reads only
-- uses _clock.lua
-- uses _log.lua
-- uses _positions.lua
--
-- KEYS  1… newest, members, counts, log; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 most entries a chat holds
-- ARGV  4 greatest age of an entry: ms, 0 for any
-- Returns a list with an item for each chat: unread, the line of newest where all is acked, or -1
--   not a member (any more)
local max_length, max_age, now = tonumber(ARGV[3]), tonumber(ARGV[4]), clock()

local items = {}
for at = 1, #KEYS, 4 do
  local last, _, __, ___, line = newest_of(KEYS[at])
  local position = redis.call('ZSCORE', KEYS[at + 1], ARGV[1])
  if not last or not position then
    items[#items + 1] = -1
  elseif last == tonumber(position) then
    items[#items + 1] = line
  else
    local first = limited(KEYS[at + 3], first_of(KEYS[at + 3], last), last, now, max_length, max_age)
    items[#items + 1] = unread(KEYS[at + 2], KEYS[at + 3], first, last, tonumber(position), ARGV[1], ARGV[2])
  end
end
return items
