-- Writes a chat into a user's index, before the chat learns of the user.
--
-- uses _clock.lua
--
-- KEYS  1 the user's chats
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 most chats a user may be in
-- Returns 1, or 'full'
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return 'full'
end
-- No leaving removes a token with a '?'. Where another joining has not confirmed yet, the entry is neither's:
-- each could confirm what the other's end then removes, and a member would not find the chat.
local token, seen = '?' .. ARGV[2], '0'
if entry then
  local before
  before, seen = string.match(entry, '^(%S+) %d+ (%S+)$')
  if string.sub(before, 1, 1) == '?' and before ~= token then
    token = '?'
  end
end
redis.call('HSET', KEYS[1], ARGV[1], token .. ' ' .. clock() .. ' ' .. seen)
return 1
