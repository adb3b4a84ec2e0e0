-- Writes a chat into a user's index, before the chat learns of it; and after, to confirm it.
--
-- uses _clock.lua
--
-- KEYS  1 the user's chats
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 what the user has seen of the chat, as a line of newest; 0 before the chat knows the user
-- ARGV  4 most chats a user may be in; 0: no matter how many
-- Returns 1, or 'full'
if ARGV[4] ~= '0' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4])
  and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 'full'
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. clock() .. ' ' .. ARGV[3])
return 1
