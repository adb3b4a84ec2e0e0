-- Notes that a run has come to its end: the next one begins anew.
--
-- KEYS  1 indexing
-- ARGV  1 number of the run
-- Returns 1, or 0 where another one has taken its place
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then
  return 0
end
redis.call('HDEL', KEYS[1], 'only', 'after', 'done', 'at')
return 1
