-- Describes what a channel stores.
--
-- reads only
-- uses _broadcast.lua
--
-- KEYS  1 head
-- KEYS  2… ring of buckets
-- ARGV  1 maximum number of events in the channel
-- Returns {id of the newest event, its time (µs), epoch, id of the oldest stored event, its time (µs), about how many bytes
--   the stored events have}, where the oldest is 0 if none is stored; or nil if the channel doesn't exist
local head, max_length = KEYS[1], tonumber(ARGV[1])
local last, us, epoch, first = read_head(head)
if not last then
  return nil
end
local kept = math.max(tonumber(first), last - max_length + 1)
local oldest, oldest_us, bytes = math.huge, '0', 0
for at = 2, #KEYS do
  local begin = redis.call('LINDEX', KEYS[at], 0)
  if begin then
    local id, moment = string.match(begin, '^%[(%d+),(%d+),')
    if tonumber(id) < oldest then
      oldest, oldest_us = tonumber(id), moment
    end
    -- by the size of two events: reading all would take too long
    bytes = bytes + redis.call('LLEN', KEYS[at]) * (#begin + #redis.call('LINDEX', KEYS[at], -1)) / 2
  end
end
local shown = oldest <= last and math.max(oldest, kept) or 0
return {last, us, epoch, shown, oldest_us, math.floor(bytes)}
