-- Looks at a semaphore.
--
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _semaphores.lua
-- reads only
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 waiting
-- Returns the limit or nil, how many hold a permit, and how many wait
local now = microseconds()
-- those who wait count as alive until a moment, as those who hold
return {redis.call('GET', KEYS[2]), held(KEYS[1], now), held(KEYS[3], now)}
