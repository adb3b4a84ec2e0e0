-- Reads the state of a semaphore.
--
-- uses _semaphores.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 waiting
-- Returns {limit or nil, number of permits held, number of waiting clients}
local holders, limit, waiting = KEYS[1], KEYS[2], KEYS[3]
local now = microseconds()
return {redis.call('GET', limit), count_active(holders, now), count_active(waiting, now)}
