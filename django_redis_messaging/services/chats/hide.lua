-- Hides what a member has read from the others, or shows it again.
--
-- uses _chat.lua
-- uses common/_hints.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 1 to hide it, 0 to show it
-- ARGV  3 random number, see count_move in _positions.lua
-- Returns 1 if that has changed, otherwise 0, as for a user who is not a member and for a chat that nobody can read
--   because one of the keys has another type
local keys = chat_at(KEYS)
local user, hides, step = ARGV[1], ARGV[2] == '1', ARGV[3]

-- This is done for all chats of a user: one that is broken must not end it.
local position, is_hidden = redis.pcall('ZSCORE', keys.members, user), redis.pcall('SISMEMBER', keys.hidden, user)
if type(position) ~= 'string' or is_hidden ~= (hides and 0 or 1) then
  return 0
end
redis.call(hides and 'SADD' or 'SREM', keys.hidden, user)
if redis.pcall('HEXISTS', keys.info, 'created') == 1 then
  redis.call('HINCRBY', keys.info, 'moved', step)
end
publish_hint('t', keys.members)
return 1
