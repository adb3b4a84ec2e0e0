-- Removes chats from a user's index, each only if its entry belongs to the membership that ended. A joining in
-- progress keeps the entry.
--
-- uses common/_live.lua
-- uses common/_memory.lua
-- uses common/_time.lua
-- uses users/_user.lua
--
-- KEYS  1 chats: the user's index
-- ARGV  1 minimum age of the entries: ms. A joining writes the index before the chat, so repairs wait for a grace
--         period; a leave does not wait (0).
-- ARGV  2… chat id, token, chat id, token, …: the token of the membership that ended; or the whole token of an entry
--          without a membership, which a repair has read
-- Returns how many entries were removed
local index, min_age = KEYS[1], tonumber(ARGV[1])

local removed = 0
local latest = milliseconds() - min_age
allow_writes_when_full(index)
for at = 2, #ARGV, 2 do
  local chat, ended = ARGV[at], ARGV[at + 1]
  local token, written, seen = read_index_entry(index, chat)
  if token and tonumber(written) <= latest then
    local membership, joining = split_index_token(token)
    if token == ended then
      removed = removed + redis.call('HDEL', index, chat)
    elseif membership == ended then
      write_index_entry(index, chat, '?' .. joining, written, seen)
    end
  end
end
if removed > 0 then
  publish_hint('u', index)
end
return removed
