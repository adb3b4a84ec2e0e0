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
-- ARGV  7… queues that the worker serves, each: encoded name, number of jobs that this worker has ended there
-- Returns the server's clock (ms)
--
-- A heartbeat is "beat consumed started running done", then for each queue that it serves "name=ended/rate": the first three are ms;
-- consumed is when it last asked; rate is the number of jobs that ended per second.
local workers = KEYS[1]
local worker, has_consumed, started = ARGV[1], ARGV[2] == '1', ARGV[3]
local running, done, max_age = ARGV[4], ARGV[5], tonumber(ARGV[6])
local FIRST, FIELDS = 7, 2
-- ms. The rate is a mean in which what ended so long ago has the weight 1/e.
local MEMORY = 60000
local now = milliseconds()
local clock = digits(now)
local consumed = has_consumed and clock or '0'
local last_beat, last_ended, last_rates = nil, {}, {}
-- A removal comes first, at least of nothing: when memory is full, the write below is allowed then.
local silent = {''}
local heartbeats = redis.call('HGETALL', workers)
for at = 1, #heartbeats, 2 do
  local line = heartbeats[at + 1]
  local beat, before = string.match(line, '^(%d+) (%d+)')
  if heartbeats[at] == worker then
    consumed = has_consumed and clock or before
    last_beat = tonumber(beat)
    for queue, ended, rate in string.gmatch(line, '(%S+)=(%d+)/(%S+)') do
      last_ended[queue], last_rates[queue] = tonumber(ended), tonumber(rate)
    end
  elseif tonumber(beat) + max_age < now then
    silent[#silent + 1] = heartbeats[at]
  end
end
redis.call('HDEL', workers, unpack(silent))
started = started == '0' and clock or started

-- The rate after `ended` jobs, of which some have ended since the last heartbeat.
local function rate_of(queue, ended)
  local elapsed = last_beat and now - last_beat or 0
  if elapsed <= 0 then
    return last_rates[queue] or 0
  end
  -- of a young worker, the mean since its start
  local weight = math.min(math.max(1 - math.exp(-elapsed / MEMORY), elapsed / (now - started)), 1)
  local rate = (ended - (last_ended[queue] or 0)) * 1000 / elapsed
  return (last_rates[queue] or 0) * (1 - weight) + rate * weight
end

local words = {clock, consumed, started, running, done}
for at = FIRST, #ARGV, FIELDS do
  local queue, ended = ARGV[at], tonumber(ARGV[at + 1])
  words[#words + 1] = queue .. '=' .. digits(ended) .. '/' .. string.format('%.3f', rate_of(queue, ended))
end
redis.call('HSET', workers, worker, table.concat(words, ' '))
return now
