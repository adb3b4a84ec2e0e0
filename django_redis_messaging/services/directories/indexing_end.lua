-- Ends a run of sync_directory: the next call begins a new one.
--
-- KEYS  1 indexing
-- ARGV  1 number of the run
-- Returns 1, or 0 if another run has replaced it
local indexing, run = KEYS[1], ARGV[1]

if redis.call('HGET', indexing, 'run') ~= run then
  return 0
end
redis.call('HDEL', indexing, 'only', 'after', 'done', 'at')
return 1
