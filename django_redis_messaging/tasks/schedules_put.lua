-- Stores a schedule. A new one, and one with other times than before, applies from now on; one that is paused stays so.
--
-- uses _periodic.lua
-- uses common/_time.lua
--
-- KEYS  1 schedules
-- KEYS  2 periodic
-- ARGV  1 name
-- ARGV  2 its name in periodic
-- ARGV  3 JSON
-- ARGV  4 fingerprint: that of the times, "-", and that of the JSON
-- ARGV  5 JSON that it replaces; '': none; '*': any or none
-- ARGV  6 limit of stored schedules
-- Returns 1, also if the same JSON is stored already; 0 if another JSON is stored than the one to replace; if the limit
-- is exceeded, minus the number of schedules that would be stored. Nothing is done then.
local schedules, periodic = KEYS[1], KEYS[2]
local name, name_in_periodic, json, schedule = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local replaced, limit = ARGV[5], tonumber(ARGV[6])
local now = milliseconds()
local stored = redis.call('HGET', schedules, name)
if stored == json then
  return 1
end
if replaced ~= '*' and replaced ~= (stored or '') then
  return 0
end
local count = redis.call('HLEN', schedules) + 1
if not stored and count > limit then
  return -count
end
local handled, known, enqueued, paused = read_periodic(periodic, name_in_periodic)
local has_same_times = handled and string.match(known, '^%x+') == string.match(schedule, '^%x+')
redis.call('HSET', schedules, name, json)
write_periodic(periodic, name_in_periodic, has_same_times and handled or math.max(handled or 0, now), schedule,
  enqueued, paused)
note_change(periodic, now)
return 1
