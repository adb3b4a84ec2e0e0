-- Confirms a chat in a user's index, now that the chat knows the user.
--
-- uses _clock.lua
--
-- KEYS  1 the user's chats
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 token of the membership in force
-- ARGV  4 what the user has seen of the chat: its epoch, as a line of newest
-- Returns 1, or 0 where another joining has written the entry since
local entry, seen = redis.call('HGET', KEYS[1], ARGV[1]), ARGV[4]
if entry then
  local token, known = string.match(entry, '^(%S+) %d+ (%S+)$')
  if token ~= '?' .. ARGV[2] then
    return 0
  end
  if known ~= '0' then
    seen = known
  end
end
-- Removes nothing; but what follows a first write that Redis never refuses is not refused either.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ' ' .. clock() .. ' ' .. seen)
return 1
