-- Lists the permits that are held, those whose leases end first at the beginning.
--
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 holders
-- ARGV  1 maximum number of permits to list
-- Returns token and end of the lease (µs) of each permit (flat)
local holders = KEYS[1]
local limit = ARGV[1]
local held_after = '(' .. digits(microseconds())
return redis.call('ZRANGEBYSCORE', holders, held_after, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
