-- Removes what a joining that was refused has written into a user's index of chats.
--
-- uses common/_hints.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-2 user (users/_user.lua)
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 1 if the entry is removed, unless it is confirmed or another joining is in progress; otherwise 0
-- Returns how many entries were removed
local keys = user_at(KEYS)
local chat, token, is_removed = ARGV[1], ARGV[2], ARGV[3] == '1'

allow_writes_when_full(keys.chats)
redis.call('ZREM', keys.joining, joining_entry(chat, token))
local number, seen = read_index_entry(keys.chats, chat)
if is_removed and number and number <= 0 and remove_index_entry(keys.chats, keys.joining, chat, number, seen) then
  publish_hint('u', keys.chats)
  return 1
end
return 0
