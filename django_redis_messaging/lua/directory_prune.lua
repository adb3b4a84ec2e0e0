-- Forgets directories that were found empty, unless somebody may be adding to one right now: an add
-- registers first, and is over once the grace has passed.
--
-- uses _clock.lua
--
-- KEYS  1 registry: ZSET guild → ms of the latest add
-- ARGV  1 grace: ms
-- ARGV  2… guilds: the empty ones
-- Returns 1
local latest = clock() - tonumber(ARGV[1])
for at = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if score and tonumber(score) < latest then
    redis.call('ZREM', KEYS[1], ARGV[at])
  end
end
return 1
