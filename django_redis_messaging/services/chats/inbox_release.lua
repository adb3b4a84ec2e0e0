-- Removes what a joining that was refused has written into a user's index of chats.
--
-- uses common/_hints.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-2 user (users/_user.lua)
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- Returns how many entries were removed
local keys = user_at(KEYS)
local chat, token = ARGV[1], ARGV[2]

allow_writes_when_full(keys.chats)
redis.call('ZREM', keys.joining, joining_entry(chat, token))
local number, seen = read_index_entry(keys.chats, chat)
if number and number <= 0 and remove_index_entry(keys.chats, keys.joining, chat, number, seen) then
  publish_hint('u', keys.chats)
  return 1
end
return 0
