-- Records in a user's index what the user has seen of chats. While a chat's newest has the recorded value, the chat
-- need not be read.
--
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1 chats: the user's index
-- ARGV  1… chat id, token, what the user has seen (_positions.lua); of each chat
-- Returns how many entries were updated
local index = KEYS[1]

local updated = 0
allow_writes_when_full(index)
for at = 1, #ARGV, 3 do
  local chat, membership, seen = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local token, written = read_index_entry(index, chat)
  if token == membership then
    write_index_entry(index, chat, token, written, seen)
    updated = updated + 1
  end
end
return updated
