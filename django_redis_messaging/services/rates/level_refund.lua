-- Takes back uses of a key.
--
-- uses _levels.lua
-- uses common/_time.lua
--
-- KEYS  1 level
-- ARGV  1 number of uses
-- ARGV  2 request id: a repeat takes back nothing
-- ARGV  3 for how long the request is remembered at least: ms
-- ARGV  4… limit, period (ms) and capacity of each limit
-- Returns 1, also to a repeat; or 0 if no use of the key counts any more
local state = KEYS[1]
local uses, request, min_ttl = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local now = milliseconds()
local limits, requests, is_repeat = read_levels(state, 4, now, request)
if is_repeat then
  return 1
end
if ms_to_zero(limits) == 0 then
  return 0
end
for _, one in ipairs(limits) do
  one.level = math.max(one.level - uses * one.period, 0)
end
store_levels(state, limits, now, min_ttl, values_of(requests, request))
return 1
