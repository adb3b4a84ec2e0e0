-- Counts what a member has not read, in any number of chats.
--
-- reads only
-- uses _clock.lua
-- uses _log.lua
--
-- KEYS  1… info, members, counts, log; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 most entries a chat holds
-- ARGV  4 greatest age of an entry: ms, 0 for any
-- Returns a list with an item for each chat: unread, or -1 not a member (any more)
local max_length, max_age, now = tonumber(ARGV[3]), tonumber(ARGV[4]), clock()

local items = {}
for at = 1, #KEYS, 4 do
  local info = redis.call('HMGET', KEYS[at], 'last', 'first')
  local position = redis.call('ZSCORE', KEYS[at + 1], ARGV[1])
  if not info[1] or not position then
    items[#items + 1] = -1
  elseif info[1] == position then
    items[#items + 1] = 0
  else
    local last = tonumber(info[1])
    local first = limited(KEYS[at], KEYS[at + 3], tonumber(info[2]), last, now, max_length, max_age)
    items[#items + 1] = unread(KEYS[at + 2], KEYS[at + 3], first, last, tonumber(position), ARGV[1], ARGV[2])
  end
end
return items
