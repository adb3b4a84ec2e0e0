-- Writes a chat into a user's index before the user becomes a member.
--
-- uses _index.lua
-- uses _time.lua
--
-- KEYS  1 index: the user's chats
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 maximum number of chats of a user
-- Returns 1, or 'full'
local index = KEYS[1]
local chat, pending_token, max_chats = ARGV[1], '?' .. ARGV[2], tonumber(ARGV[3])

local token, _, seen = read_index_entry(index, chat)
if not token and redis.call('HLEN', index) >= max_chats then
  return 'full'
end
-- A leave never removes a token with a '?'. If another joining has not confirmed its entry yet, the entry gets
-- the token of neither. Otherwise each could confirm an entry that the end of the other's membership then
-- removes, and a member would not find the chat.
if token and string.sub(token, 1, 1) == '?' and token ~= pending_token then
  pending_token = '?'
end
write_index_entry(index, chat, pending_token, milliseconds(), seen or '0')
return 1
