-- Removes a joining from a user's index after it was refused. The entry of a membership stays.
--
-- uses common/_memory.lua
-- uses users/_user.lua
--
-- KEYS  1 chats: the user's index
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- Returns 1, or 0 if the entry does not name this joining, or repeats of it
local index = KEYS[1]
local chat, refused = ARGV[1], ARGV[2]

local token, written, seen = read_index_entry(index, chat)
if not token then
  return 0
end
local membership, joining = split_index_token(token)
if joining ~= refused then
  return 0
end
if membership == '' then
  return redis.call('HDEL', index, chat)
end
allow_writes_when_full(index)
write_index_entry(index, chat, membership, written, seen)
return 1
