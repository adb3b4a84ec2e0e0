-- Stores the heartbeat of a worker, and removes workers that are silent.
--
-- uses common/_time.lua
--
-- KEYS  1 workers
-- ARGV  1 worker
-- ARGV  2 whether it has asked for jobs since its last heartbeat: 1 or 0
-- ARGV  3 start of the worker by the server's clock: ms; 0 in the first heartbeat
-- ARGV  4 jobs that it is running
-- ARGV  5 jobs that it has run
-- ARGV  6 age of a heartbeat at which a worker is removed: ms
-- Returns the server's clock (ms)
--
-- A heartbeat is "beat consumed started running done": the first three are ms; consumed is when it last asked.
local workers = KEYS[1]
local worker, has_consumed, started = ARGV[1], ARGV[2] == '1', ARGV[3]
local running, done, max_age = ARGV[4], ARGV[5], tonumber(ARGV[6])
local now = milliseconds()
local clock = digits(now)
local consumed = has_consumed and clock or '0'
-- A removal comes first, at least of nothing: when memory is full, the write below is allowed then.
local silent = {''}
local heartbeats = redis.call('HGETALL', workers)
for at = 1, #heartbeats, 2 do
  local beat, before = string.match(heartbeats[at + 1], '^(%d+) (%d+)')
  if heartbeats[at] == worker then
    consumed = has_consumed and clock or before
  elseif tonumber(beat) + max_age < now then
    silent[#silent + 1] = heartbeats[at]
  end
end
redis.call('HDEL', workers, unpack(silent))
started = started == '0' and clock or started
redis.call('HSET', workers, worker, table.concat({clock, consumed, started, running, done}, ' '))
return now
