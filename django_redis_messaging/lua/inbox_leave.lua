-- Removes chats from a user's index, each only if its entry belongs to the membership that ended.
--
-- uses _index.lua
-- uses _time.lua
--
-- KEYS  1 index: the user's chats
-- ARGV  1 minimum age of the entries: ms. A joining writes the index before the chat, so repairs wait for a grace
--         period; a leave does not wait (0).
-- ARGV  2… chat id, token, chat id, token, …
-- Returns how many entries were removed
local index, min_age = KEYS[1], tonumber(ARGV[1])

local removed = 0
local latest = milliseconds() - min_age
for at = 2, #ARGV, 2 do
  local chat, ended = ARGV[at], ARGV[at + 1]
  local token, written = read_index_entry(index, chat)
  if token == ended and tonumber(written) <= latest then
    removed = removed + redis.call('HDEL', index, chat)
  end
end
return removed
