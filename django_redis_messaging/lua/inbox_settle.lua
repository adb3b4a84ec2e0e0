-- Notes in a user's index what the newest of some chats was when the user had acked all of it: while that
-- is still the newest, the chat needs no look.
--
-- KEYS  1 the user's chats
-- ARGV  1… chat id, token, line of newest; of each chat
-- Returns how many were noted
local noted = 0
-- Removes nothing; but what follows a first write that Redis never refuses is not refused either.
redis.call('HDEL', KEYS[1], '')
for at = 1, #ARGV, 3 do
  local entry = redis.call('HGET', KEYS[1], ARGV[at])
  if entry then
    local token, written = string.match(entry, '^(%S+) (%d+)')
    if token == ARGV[at + 1] then
      redis.call('HSET', KEYS[1], ARGV[at], token .. ' ' .. written .. ' ' .. ARGV[at + 2])
      noted = noted + 1
    end
  end
end
return noted
