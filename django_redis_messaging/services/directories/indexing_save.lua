-- Saves the progress of a run of sync_directory, or ends it, unless it has ended or was replaced by another.
--
-- uses common/_time.lua
--
-- KEYS  1 indexing
-- ARGV  1 number of the run
-- ARGV  2 key after which it continues
-- ARGV  3 number of finished users
-- ARGV  4 1 to end the run, so that the next call begins a new one, otherwise 0
-- Returns 1, or 0 if the run has ended
local indexing = KEYS[1]
local run, after, done, ends = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

local current, only = unpack(redis.call('HMGET', indexing, 'run', 'only'))
if current ~= run or not only then
  return 0
end
if ends then
  redis.call('HDEL', indexing, 'only', 'after', 'done', 'at')
else
  redis.call('HSET', indexing, 'after', after, 'done', done, 'at', digits(milliseconds()))
end
return 1
