-- Removes memberships that ended, or joinings that were refused, from a user's index of chats. An entry that names
-- both keeps the other one.
--
-- uses common/_hints.lua
-- uses common/_time.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1 chats: the user's index
-- ARGV  1 minimum age of the entries: ms. A joining writes the index before the chat, so repairs wait for a grace
--         period; a leave and a refusal do not wait (0).
-- ARGV  2… chat id, token, chat id, token, …: the token of the membership that ended; "?" and the token of the joining
--          that was refused; or the whole token of an entry, which a repair has read
-- Returns how many entries were removed
local index, min_age = KEYS[1], tonumber(ARGV[1])

local removed = 0
local latest = min_age > 0 and milliseconds() - min_age or math.huge
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
    elseif joining and '?' .. joining == ended then
      write_index_entry(index, chat, membership, written, seen)
    end
  end
end
if removed > 0 then
  publish_hint('u', index)
end
return removed
