-- The live workers of a slot, by the heartbeats that jobs/workers_beat.lua stores.

-- Whether a worker runs jobs, has asked for some since its heartbeat before, or has just started.
local function is_consuming(beat, consumed, started, running)
  return running > 0 or consumed >= beat or started >= beat
end

-- Reads which live workers serve a queue: how many, how many of them run no job, the jobs that they run, and the rate at
-- which jobs of the queue end. `alive` is whether `worker` is one of the slot's live workers. `queue` is encoded; `max_age`:
-- of a heartbeat, ms.
local function read_serving(workers, queue, worker, now, max_age)
  local found = {serving = 0, idle = 0, running = 0, rate = 0, alive = 0}
  local heartbeats = redis.call('HGETALL', workers)
  for at = 1, #heartbeats, 2 do
    local line = heartbeats[at + 1]
    local beat, consumed, started, running = string.match(line, '^(%d+) (%d+) (%d+) (%d+)')
    beat, running = tonumber(beat), tonumber(running)
    if beat and beat + max_age >= now then
      found.alive = heartbeats[at] == worker and 1 or found.alive
      local _, till = string.find(line, ' ' .. queue .. '=', 1, true)
      if till and is_consuming(beat, tonumber(consumed), tonumber(started), running) then
        found.serving = found.serving + 1
        found.idle = found.idle + (running == 0 and 1 or 0)
        found.running = found.running + running
        found.rate = found.rate + (tonumber(string.match(line, '^%d+/(%S+)', till + 1)) or 0)
      end
    end
  end
  return found
end
