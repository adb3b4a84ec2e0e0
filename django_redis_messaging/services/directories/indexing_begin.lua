-- Begins a run of sync_directory, or resumes the latest run if it was interrupted.
--
-- uses common/_time.lua
--
-- KEYS  1 indexing
-- ARGV  1 requested directories
-- ARGV  2 whether to begin a new run in any case: 1 or 0
-- ARGV  3 maximum age of an interrupted run that is resumed: ms
-- Returns the number of the run, the key after which it continues ("" at first), and the number of finished users
local indexing = KEYS[1]
local requested, fresh, max_age = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])

local now = milliseconds()
local run, only, after, done, at = unpack(redis.call('HMGET', indexing, 'run', 'only', 'after', 'done', 'at'))
if not fresh and only == requested and now - tonumber(at) <= max_age then
  return {tonumber(run), after, tonumber(done)}
end
-- The number grows even if the clock was set back: marks of this run must be distinct from those of earlier runs.
local number = math.max(now, tonumber(run or 0) + 1)
redis.call('HSET', indexing,
  'at', string.format('%.0f', now), 'run', string.format('%.0f', number), 'only', requested, 'after', '', 'done', 0)
return {number, '', 0}
