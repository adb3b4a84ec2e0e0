-- Releases the right to dispatch the keyspace events of a primary.
--
-- KEYS  1 lease
-- ARGV  1 token of the listener
-- Returns 1, or 0 if the listener didn't have it
local lease = KEYS[1]
local token = ARGV[1]
if string.match(redis.call('GET', lease) or '', '^%S+') ~= token then
  return 0
end
return redis.call('DEL', lease)
