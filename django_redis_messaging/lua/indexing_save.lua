-- Notes how far a run has come, unless another one has ended it or taken its place.
--
-- uses _clock.lua
--
-- KEYS  1 indexing
-- ARGV  1 number of the run
-- ARGV  2 after which key it goes on
-- ARGV  3 users that are done
-- Returns 1, or 0 where the run is over
local run, only = unpack(redis.call('HMGET', KEYS[1], 'run', 'only'))
if run ~= ARGV[1] or not only then
  return 0
end
redis.call('HSET', KEYS[1], 'after', ARGV[2], 'done', ARGV[3], 'at', string.format('%.0f', clock()))
return 1
