-- Lists the registered queues.
--
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 queues
-- ARGV  1 age at which a registration is old: ms
-- Returns how many registrations are old, and the names: the oldest registration first
local queues = KEYS[1]
local max_age = tonumber(ARGV[1])
local old = redis.call('ZCOUNT', queues, '-inf', digits(milliseconds() - max_age))
return {old, redis.call('ZRANGE', queues, 0, -1)}
