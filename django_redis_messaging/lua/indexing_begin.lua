-- Begins to fill directories, or goes on where the latest run was stopped.
--
-- uses _clock.lua
--
-- KEYS  1 indexing
-- ARGV  1 the directories asked for
-- ARGV  2 whether to begin anew in any case: 1 or 0
-- ARGV  3 ms after which a run that was stopped is not gone on with
-- Returns the number of the run, after which key it goes on ("" at first), and how many users are done
local now = clock()
local run, only, after, done, at = unpack(redis.call('HMGET', KEYS[1], 'run', 'only', 'after', 'done', 'at'))
if ARGV[2] == '0' and only == ARGV[1] and now - tonumber(at) <= tonumber(ARGV[3]) then
  return {tonumber(run), after, tonumber(done)}
end
-- It grows also where the clock was set back: whom it finds is told from whom earlier ones found.
local number = math.max(now, tonumber(run or 0) + 1)
local words = {'run', string.format('%.0f', number), 'only', ARGV[1], 'after', '', 'done', 0}
redis.call('HSET', KEYS[1], 'at', string.format('%.0f', now), unpack(words))
return {number, '', 0}
