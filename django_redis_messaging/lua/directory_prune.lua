-- Removes empty directories from the registry, unless an add may be in progress: an add registers its directory
-- first, and has ended after the grace period.
--
-- uses _time.lua
--
-- KEYS  1 registry: ZSET guild → ms of the latest add
-- ARGV  1 grace period: ms
-- ARGV  2… guilds whose directories are empty
-- Returns 1
local registry, grace = KEYS[1], tonumber(ARGV[1])

local latest = milliseconds() - grace
for at = 2, #ARGV do
  local guild = ARGV[at]
  local score = redis.call('ZSCORE', registry, guild)
  if score and tonumber(score) < latest then
    redis.call('ZREM', registry, guild)
  end
end
return 1
