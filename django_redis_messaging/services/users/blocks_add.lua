-- Adds a user to those whom another user has blocked.
--
-- uses common/_time.lua
--
-- KEYS  1 blocks
-- ARGV  1 user to block
-- ARGV  2 maximum number of users whom a user may block
-- Returns 1, 0 if the user is blocked already, or 'full'
local blocks = KEYS[1]
local user, limit = ARGV[1], tonumber(ARGV[2])

if redis.call('ZSCORE', blocks, user) then
  return 0
end
if redis.call('ZCARD', blocks) >= limit then
  return 'full'
end
-- later than the latest one, even if the clock was set back
local latest = redis.call('ZREVRANGE', blocks, 0, 0, 'WITHSCORES')[2] or 0
return redis.call('ZADD', blocks, digits(math.max(microseconds(), latest + 1)), user)
