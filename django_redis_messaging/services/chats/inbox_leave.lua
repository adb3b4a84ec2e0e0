-- Removes memberships that have ended from a user's index of chats.
--
-- uses common/_hints.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-2 user (users/_user.lua)
-- ARGV  1… chat id, join number of the membership; of each chat
-- Returns how many entries were removed
local keys = user_at(KEYS)

local removed = 0
allow_writes_when_full(keys.chats)
for at = 1, #ARGV, 2 do
  local chat, ended = ARGV[at], tonumber(ARGV[at + 1])
  local number, seen = read_index_entry(keys.chats, chat)
  if number and number <= ended then
    ended = math.max(ended, -number)
    removed = removed + (remove_index_entry(keys.chats, keys.joining, chat, ended, seen) and 1 or 0)
  end
end
if removed > 0 then
  publish_hint('u', keys.chats)
end
return removed
