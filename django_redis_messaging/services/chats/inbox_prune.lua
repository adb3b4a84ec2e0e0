-- Removes chats from a user's index of which a read has found that the user is not a member.
--
-- uses common/_hints.lua
-- uses common/_time.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-2 user (users/_user.lua)
-- ARGV  1 how long a joining can take: ms
-- ARGV  2… chat id, the number of the entry that was read; of each chat
-- Returns how many entries were removed: those that are unchanged, and have no joining in progress
local keys = user_at(KEYS)
local grace = tonumber(ARGV[1])

local removed = 0
redis.call('ZREMRANGEBYSCORE', keys.joining, '-inf', milliseconds() - grace)
allow_writes_when_full(keys.chats)
for at = 2, #ARGV, 2 do
  local chat = ARGV[at]
  if read_index_entry(keys.chats, chat) == tonumber(ARGV[at + 1]) and not is_joining(keys.joining, chat) then
    removed = removed + redis.call('HDEL', keys.chats, chat)
  end
end
if removed > 0 then
  publish_hint('u', keys.chats)
end
return removed
