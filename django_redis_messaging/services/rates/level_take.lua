-- Uses a key as often as `cost`, if all limits have room for it.
--
-- uses _levels.lua
-- uses common/_time.lua
--
-- KEYS  1 level
-- ARGV  1 cost
-- ARGV  2 request id: a repeat of a request that was allowed uses nothing
-- ARGV  3 for how long the request is remembered at least: ms
-- ARGV  4… limit, period (ms) and capacity of each limit
-- Returns a decision (_levels.lua)
local state = KEYS[1]
local cost, request, min_ttl = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local now = milliseconds()
local limits, requests, is_repeat = read_levels(state, 4, now, request)
if is_repeat then
  return decision(limits, 0)
end
local wait, last = ms_to_wait(limits, cost)
if wait == 0 then
  for _, one in ipairs(limits) do
    one.level = one.level + cost * one.period
  end
  store_levels(state, limits, now, min_ttl, values_of(requests, request))
elseif was_set_back(limits, now) then
  store_levels(state, limits, now, min_ttl, {}) -- they fall from now on, instead of when the clock has caught up
end
return decision(limits, wait, last)
