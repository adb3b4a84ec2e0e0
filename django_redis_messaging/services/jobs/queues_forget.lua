-- Removes the registration of a queue, unless it was registered again meanwhile.
--
-- uses common/_time.lua
--
-- KEYS  1 queues
-- ARGV  1 name
-- ARGV  2 age at which a registration is old: ms
-- Returns 1, or 0 if the registration is not old, or doesn't exist
local queues = KEYS[1]
local name, max_age = ARGV[1], tonumber(ARGV[2])
local moment = redis.call('ZSCORE', queues, name)
if not moment or tonumber(moment) > milliseconds() - max_age then
  return 0
end
return redis.call('ZREM', queues, name)
