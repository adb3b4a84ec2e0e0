-- Removes chats from a user's index, each only if its entry is still of the joining that ended.
--
-- uses _clock.lua
--
-- KEYS  1 the user's chats
-- ARGV  1 age that the entries must have: ms. Healing waits for a grace, since a joining writes the index
--         first; leaving doesn't wait (0).
-- ARGV  2… chat id, token, chat id, token, …
-- Returns how many were removed
local removed = 0
local youngest = clock() - ARGV[1]
for at = 2, #ARGV, 2 do
  local entry = redis.call('HGET', KEYS[1], ARGV[at])
  if entry then
    local token, written = string.match(entry, '^(%S+) (%d+)')
    if token == ARGV[at + 1] and tonumber(written) <= youngest then
      removed = removed + redis.call('HDEL', KEYS[1], ARGV[at])
    end
  end
end
return removed
