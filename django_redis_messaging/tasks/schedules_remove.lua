-- Deletes a stored schedule.
--
-- uses _periodic.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 schedules
-- KEYS  2 periodic
-- KEYS  3-4 requests
-- ARGV  1 name
-- ARGV  2 its name in periodic
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- Returns 1, also to a repeat; 0 if it is not stored
local schedules, periodic, requests = KEYS[1], KEYS[2], {KEYS[3], KEYS[4]}
local name, name_in_periodic, request, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = milliseconds()
if find_answer(request, requests, window, now) then
  return 1
end
if redis.call('HDEL', schedules, name) == 0 then
  return 0
end
redis.call('HDEL', periodic, name_in_periodic)
note_change(periodic, now)
record_answer(request, '1', requests, window, now)
return 1
