-- Removes empty directories from the registry, unless an add may be in progress: an add registers its directory
-- first, and has ended after the grace period. Until then, the directory is marked, to be checked again later.
--
-- uses common/_time.lua
--
-- KEYS  1 registry: ZSET guild → ms of the latest add, negative for a marked directory
-- ARGV  1 grace period: ms
-- ARGV  2… guilds whose directories are empty
-- Returns some marked guilds whose grace period has ended: remove them if their directories are still empty
local registry, grace = KEYS[1], tonumber(ARGV[1])

-- guilds returned by one call
local MAX_DUE = 100

local latest = milliseconds() - grace
-- Redis refuses ZADD while its memory is full, but not after a command that is never refused. No guild is ''.
redis.call('ZREM', registry, '')
for at = 2, #ARGV do
  local guild = ARGV[at]
  local added = math.abs(tonumber(redis.call('ZSCORE', registry, guild) or 0))
  if added < latest then
    redis.call('ZREM', registry, guild)
  else
    redis.call('ZADD', registry, digits(-added), guild)
  end
end
return redis.call('ZRANGE', registry, '(' .. digits(-latest), '(0', 'BYSCORE', 'LIMIT', 0, MAX_DUE)
