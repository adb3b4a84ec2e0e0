-- Confirms a chat in a user's index after the user has become a member.
--
-- uses common/_hints.lua
-- uses common/_writes.lua
-- uses users/_user.lua
--
-- KEYS  1-5 user (users/_user.lua)
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 join number of the membership in force
-- ARGV  4 epoch of the chat
-- ARGV  5 the other member of a direct chat, or ''
-- ARGV  6 1 if the user has made themselves a member, otherwise 0
-- Returns the sum of 1 if the user hides what they have read, 2 if the user has blocked the other member, and 4 if the
--   user has declined the direct chat since the reservation: then the entry is not confirmed
local keys = user_at(KEYS)
local chat, token, number, epoch, companion = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local is_own = ARGV[6] == '1'

local state = redis.call('HGET', keys.choices, 'receipts') == '0' and 1 or 0
if companion ~= '' and redis.call('ZSCORE', keys.blocks, companion) then
  state = state + 2
end
if not is_own and companion ~= '' and redis.call('ZSCORE', keys.declined, chat) then
  return state + 4
end
allow_writes_when_full(keys.chats)
redis.call('ZREM', keys.joining, joining_entry(chat, token))
local known, seen = read_index_entry(keys.chats, chat)
known = known or 0
if known < 0 and number <= -known then
  return state -- the membership has ended meanwhile, unless data was lost: a read finds out
end
if number > known then
  if not seen or string.match(seen, '^%d+%-%d+%-%d+%-(%d+)') ~= epoch then
    seen = '0-0-0-' .. epoch .. '-0-0-0'
  end
  write_index_entry(keys.chats, chat, number, seen)
end
if is_own and companion ~= '' then
  redis.call('ZREM', keys.declined, chat) -- the user has opened the direct chat
end
publish_hint('u', keys.chats)
return state
