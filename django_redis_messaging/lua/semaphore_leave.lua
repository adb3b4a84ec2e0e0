-- Takes a caller who was interrupted out of the line, and gives back the permit that it may have been granted.
--
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _semaphores.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 line
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 token of the caller
-- Returns nothing
local now = microseconds()
local limit, shown = redis.call('GET', KEYS[2]) or 0, opened_for(KEYS[5])
swept(KEYS[3], KEYS[4], now)
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
opened(KEYS[3], KEYS[5], limit - held(KEYS[1], now), shown)
