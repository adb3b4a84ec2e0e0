-- Reads up to which moment the occurrences of schedules have been handled. Those of a new task are handled up to now,
-- and so are those of one whose moment is in the future: the clock was ahead then. A changed schedule applies from the
-- moment at which the poller that has it began. Records that a poller has looked. If the stored schedules have changed
-- since the poller has read them, it only returns these.
--
-- uses _periodic.lua
-- uses common/_time.lua
--
-- KEYS  1 periodic
-- KEYS  2 schedules
-- ARGV  1 when the poller began: ms; 0: now
-- ARGV  2 "changed" when the poller read the stored schedules; 0: it knows none
-- ARGV  3… schedules, each: name, fingerprint
-- Returns the server's clock (ms), "changed", and for each schedule the moment (ms), or -1 while it is paused; or if
-- "changed" is another one, the names of all stored schedules, each followed by its JSON
local periodic, schedules = KEYS[1], KEYS[2]
local began, known_change = tonumber(ARGV[1]), ARGV[2]
local FIRST, FIELDS = 3, 2
-- ms. Up to so far in the future, the clock may be that of another server, after a failover: then nothing is repeated.
local MAX_AHEAD = 10000
-- ms between two records of looks
local POLLED_INTERVAL = 20000
local now = milliseconds()
local names = {'polled', 'changed'}
for at = FIRST, #ARGV, FIELDS do
  names[#names + 1] = ARGV[at]
end
local values = redis.call('HMGET', periodic, unpack(names))
local polled, changed = tonumber(values[1] or 0), values[2] or '0'
if changed ~= known_change then
  return {now, changed, redis.call('HGETALL', schedules)}
end
local moments = {}
for number = 3, #names do
  local name, schedule = names[number], ARGV[FIRST + (number - 3) * FIELDS + 1]
  local stored, known, enqueued, paused = parse_periodic(values[number])
  local handled = stored
  if not stored or stored > now + MAX_AHEAD then
    handled = now
  elseif known ~= schedule then
    handled = math.max(stored, began > 0 and math.min(began, now) or now)
  end
  if handled ~= stored or known ~= schedule then
    write_periodic(periodic, name, handled, schedule, enqueued, paused)
  end
  moments[#moments + 1] = paused and -1 or handled
end
local is_old = polled > now or now - polled >= POLLED_INTERVAL -- the former: the clock was set back
if is_old and (#moments > 0 or changed ~= '0') then
  redis.pcall('HSET', periodic, 'polled', digits(now)) -- refused while memory is full: nothing can be enqueued then
end
return {now, changed, moments}
