-- Gives up the right to dispatch the keyspace events of a primary.
--
-- KEYS  1 lease
-- ARGV  1 token of the listener
-- Returns 1, or 0 where it had it not
if string.match(redis.call('GET', KEYS[1]) or '', '^%S+') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
