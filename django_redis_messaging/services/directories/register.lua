-- Registers a directory before it is written to, so that forget() finds every directory of a member.
--
-- uses common/_time.lua
--
-- KEYS  1 registry: ZSET guild → ms of the latest add, negative for a marked directory
-- ARGV  1 guild
-- Returns 1
local registry, guild = KEYS[1], ARGV[1]

redis.call('ZADD', registry, 'GT', milliseconds(), guild)
return 1
