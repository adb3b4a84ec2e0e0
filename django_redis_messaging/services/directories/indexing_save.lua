-- Saves the progress of a run of sync_directory, unless the run was ended or replaced by another.
--
-- uses common/_time.lua
--
-- KEYS  1 indexing
-- ARGV  1 number of the run
-- ARGV  2 key after which it continues
-- ARGV  3 number of finished users
-- Returns 1, or 0 if the run has ended
local indexing = KEYS[1]
local run, after, done = ARGV[1], ARGV[2], ARGV[3]

local current, only = unpack(redis.call('HMGET', indexing, 'run', 'only'))
if current ~= run or not only then
  return 0
end
redis.call('HSET', indexing, 'after', after, 'done', done, 'at', string.format('%.0f', milliseconds()))
return 1
