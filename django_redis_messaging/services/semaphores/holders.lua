-- Lists the permits that are held, those whose leases end first at the beginning.
--
-- uses _semaphores.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 maximum number of permits to list
-- Returns token and end of the lease (µs) of each permit (flat)
local semaphore = semaphore_at(KEYS)
local size = ARGV[1]
local held_after = '(' .. digits(microseconds())
return redis.call('ZRANGEBYSCORE', semaphore.holders, held_after, '+inf', 'WITHSCORES', 'LIMIT', 0, size)
