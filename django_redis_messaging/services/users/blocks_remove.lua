-- Removes a user from those whom another user has blocked.
--
-- KEYS  1 blocks
-- ARGV  1 user to unblock
-- Returns 1, or 0 if the user is not blocked
local blocks, user = KEYS[1], ARGV[1]

return redis.call('ZREM', blocks, user)
