-- Reads the state of a semaphore.
--
-- uses _semaphores.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- Returns {limit or nil, number of permits held, number of waiting clients}
local semaphore = semaphore_at(KEYS)
local now = microseconds()
return {redis.call('GET', semaphore.limit), count_active(semaphore.holders, now), count_active(semaphore.waiting, now)}
