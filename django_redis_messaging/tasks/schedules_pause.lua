-- Pauses or resumes the schedules of a name: a stored one, a declared task, or both. From a pause on, no occurrence is
-- enqueued; a resumed schedule applies from now on.
--
-- uses _periodic.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1 schedules
-- KEYS  2 periodic
-- ARGV  1 name
-- ARGV  2 the name in periodic of a stored schedule
-- ARGV  3 1: pause; 0: resume
-- ARGV  4 whether the client knows a declared task of this name: 1 or 0; else a poller has seen it
-- Returns 1, also if nothing had to be changed; 0 if there is no such schedule
local schedules, periodic = KEYS[1], KEYS[2]
local name, name_in_periodic, pause, is_declared = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
-- of a task that no poller has seen
local NO_SCHEDULE = '-'
local now = milliseconds()
allow_writes_when_full(periodic)

local function set_paused(field, exists)
  local handled, schedule, enqueued, paused = read_periodic(periodic, field)
  if not handled and not exists then
    return 0
  end
  if pause and not paused then
    write_periodic(periodic, field, handled or now, schedule or NO_SCHEDULE, enqueued, now)
  elseif paused and not pause then
    write_periodic(periodic, field, math.max(handled, now), schedule, enqueued)
  end
  return 1
end

local found = set_paused(name, is_declared)
return math.max(found, set_paused(name_in_periodic, redis.call('HEXISTS', schedules, name) == 1))
