-- Counts what a member has not read in any number of chats.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1… the first 4 keys (_chat.lua) of each chat
-- ARGV  1 user
-- ARGV  2-3 limits of the log without bytes (_chat.lua)
-- ARGV  4… what the user has seen; of each chat
-- Returns a list with an item for each chat: the number of unread entries; the value of newest if all is acked and
--   nothing was lost, or the membership is suspended; -1 if the user is not a member (any more); {error} if the chat is
--   broken
local user = ARGV[1]
local limits = limits_of(ARGV[2], ARGV[3])
local now = milliseconds()

local function count(seen, newest, members, own, log)
  local chat = read_chat(newest)
  local position, suspended_score = read_position(members, user)
  if not chat or not position then
    return chat and suspended_score and chat.value or -1
  end
  local stored = first_stored(log, chat.last)
  -- Lost data is reported by pending, which must still find it.
  if position == chat.last then
    return has_lost_data(seen, position, chat, log, stored) and 0 or chat.value
  end
  local first = apply_limits(log, stored, chat, now, limits)
  return count_unread(own, first, chat.last, position, user)
end

local items = {}
for at = 1, #KEYS, 4 do
  items[#items + 1] = isolated(count, ARGV[4 + #items], unpack(KEYS, at, at + 3))
end
return items
