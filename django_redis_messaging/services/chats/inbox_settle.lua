-- Records in a user's index what the user has seen of chats. While a chat's newest has the recorded value, the chat
-- need not be read.
--
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1 chats: the user's index
-- ARGV  1… chat id, number of the entry, what the user has seen (_positions.lua); of each chat
-- Returns how many entries were updated
local index = KEYS[1]

local updated = 0
allow_writes_when_full(index)
for at = 1, #ARGV, 3 do
  local chat, number, seen = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  if read_index_entry(index, chat) == number then
    write_index_entry(index, chat, number, seen)
    updated = updated + 1
  end
end
return updated
