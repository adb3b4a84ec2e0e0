-- Confirms a chat in a user's index after the user has become a member.
--
-- uses common/_hints.lua
-- uses common/_time.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-4 user (users/_user.lua)
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 token of the membership in force
-- ARGV  4 what the user has seen of the chat: its epoch, in the format of newest
-- ARGV  5 the other member of a direct chat, or ''
-- ARGV  6 1 if the user has made themselves a member, otherwise 0
-- Returns the sum of 1 if the user hides what they have read, 2 if the user has blocked the other member, and 4 if the
--   user has declined the direct chat since the reservation: then the entry is not confirmed
local keys = user_at(KEYS)
local chat, joining, token_in_force, seen, companion = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local is_own = ARGV[6] == '1'

local state = redis.call('HGET', keys.choices, 'receipts') == '0' and 1 or 0
if companion ~= '' and redis.call('ZSCORE', keys.blocks, companion) then
  state = state + 2
end
if not is_own and companion ~= '' and redis.call('ZSCORE', keys.declined, chat) then
  return state + 4
end
local token, _, seen_before = read_index_entry(keys.chats, chat)
if token then
  local _, pending_joining = split_index_token(token)
  if pending_joining ~= joining and pending_joining ~= joining .. '+' then
    return state -- another joining has written the entry since
  end
  if seen_before ~= '0' then
    seen = seen_before
  end
end
allow_writes_when_full(keys.chats)
write_index_entry(keys.chats, chat, token_in_force, milliseconds(), seen)
if is_own and companion ~= '' then
  redis.call('ZREM', keys.declined, chat) -- the user has opened the direct chat
end
publish_hint('u', keys.chats)
return state
