-- Reads up to which moment the occurrences of periodic tasks have been handled. Those of a new task are handled up
-- to now, and so are those of a task whose moment is in the future: the clock was ahead then. A changed schedule
-- applies from the moment at which the poller that has it began. Records that a poller has looked.
--
-- uses _periodic.lua
-- uses common/_time.lua
--
-- KEYS  1 periodic
-- ARGV  1 when the poller began: ms; 0: now
-- ARGV  2… tasks, each: name, fingerprint of its schedule
-- Returns the server's clock (ms), and for each task the moment (ms)
local periodic = KEYS[1]
local began = tonumber(ARGV[1])
local FIRST, FIELDS = 2, 2
-- ms. Up to so far in the future, the clock may be that of another server, after a failover: then nothing is repeated.
local MAX_AHEAD = 10000
-- ms between two records of looks
local POLLED_INTERVAL = 20000
local now = milliseconds()
local reply = {now}
for at = FIRST, #ARGV, FIELDS do
  local name, schedule = ARGV[at], ARGV[at + 1]
  local stored, known, enqueued = read_periodic(periodic, name)
  local handled = stored
  if not stored or stored > now + MAX_AHEAD then
    handled = now
  elseif known ~= schedule then
    handled = math.max(stored, began > 0 and math.min(began, now) or now)
  end
  if handled ~= stored or known ~= schedule then
    write_periodic(periodic, name, handled, schedule, enqueued)
  end
  reply[#reply + 1] = handled
end
local polled = tonumber(redis.call('HGET', periodic, 'polled') or 0)
if polled > now or now - polled >= POLLED_INTERVAL then -- the former: the clock was set back
  redis.pcall('HSET', periodic, 'polled', digits(now)) -- refused while memory is full: nothing can be enqueued then
end
return reply
