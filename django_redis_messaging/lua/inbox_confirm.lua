-- Confirms a chat in a user's index after the user has become a member.
--
-- uses _index.lua
-- uses _live.lua
-- uses _memory.lua
-- uses _time.lua
--
-- KEYS  1 index: the user's chats
-- KEYS  2 choices
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 token of the membership in force
-- ARGV  4 what the user has seen of the chat: its epoch, in the format of newest
-- Returns whether the user hides what they have read: 1 or 0
local index, choices = KEYS[1], KEYS[2]
local chat, joining, token_in_force, seen = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local hides = redis.call('HGET', choices, 'receipts') == '0' and 1 or 0
local token, _, seen_before = read_index_entry(index, chat)
if token then
  local _, pending_joining = split_index_token(token)
  if pending_joining ~= joining and pending_joining ~= joining .. '+' then
    return hides -- another joining has written the entry since
  end
  if seen_before ~= '0' then
    seen = seen_before
  end
end
allow_writes_when_full(index)
write_index_entry(index, chat, token_in_force, milliseconds(), seen)
publish_hint('u', index)
return hides
