-- Reads which live workers serve a queue.
--
-- uses _serving.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 workers
-- ARGV  1 name of the queue, encoded
-- ARGV  2 age of a heartbeat at which its worker no longer counts: ms
-- Returns {number of workers, of those that run no job, of the jobs that they run, jobs that end in a second}, as texts
local found = read_serving(KEYS[1], ARGV[1], '', milliseconds(), tonumber(ARGV[2]))
return {digits(found.serving), digits(found.idle), digits(found.running), string.format('%.3f', found.rate)}
