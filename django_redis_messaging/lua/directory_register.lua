-- Notes that a directory is about to be written to, so that a member can be removed from every one.
--
-- uses _clock.lua
--
-- KEYS  1 registry: ZSET guild → ms of the latest add
-- ARGV  1 guild
-- Returns 1
redis.call('ZADD', KEYS[1], 'GT', clock(), ARGV[1])
return 1
