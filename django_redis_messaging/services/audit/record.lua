-- Adds an entry to the audit trail, once for each request.
--
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 trail: STREAM
-- KEYS  2 requests of this window
-- KEYS  3 requests of the window before
-- ARGV  1 maximum number of entries
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4… field, value, …
-- Returns the id of the entry
local trail, requests = KEYS[1], {KEYS[2], KEYS[3]}
local limit, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local FIRST = 4
local now = milliseconds()
local earlier = find_answer(request, requests, window, now)
if earlier then
  return earlier
end
local id = redis.call('XADD', trail, 'MAXLEN', limit, '*', unpack(ARGV, FIRST))
record_answer(request, id, requests, window, now)
return id
