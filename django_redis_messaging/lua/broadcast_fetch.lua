-- Reads the events after a place, in their order.
--
-- reads only
-- uses _digits.lua
-- uses _channel.lua
--
-- KEYS  1 head
-- KEYS  2… the ring of buckets, or some of them in a row
-- ARGV  1 epoch of the place, or '' for the oldest event there is
-- ARGV  2 id of the event before
-- ARGV  3 its time: us
-- ARGV  4 most events
-- ARGV  5 length of a bucket: ms
-- ARGV  6 most events the channel keeps
-- ARGV  7 how long an idle channel is kept: ms
-- ARGV  8 number of the first of these buckets; -1: it is the ring
-- Returns 'none' where there is no channel; 'idle' where nothing is new, 'fading' if so for long; 'doubt' where
-- the event before is another one now; 'far' where the newest bucket was not given; else {epoch, last, us,
-- missed, event, …}
local last, active, epoch, first = head_of(KEYS[1])
if not last then
  return 'none'
end
local id, us, length = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[5])
local follows = ARGV[1] == epoch
if follows and (id > last or (id == last and us ~= active)) then
  return 'doubt'
elseif follows and id == last then
  return redis.call('PTTL', KEYS[1]) < ARGV[7] / 2 and 'fading' or 'idle'
elseif not follows then
  id, us = 0, '0'
end

-- A page has at most so many bytes, and what came with the last of them; it is read by so many events.
local BYTES, PART = 1048576, 50
local most, count, start = tonumber(ARGV[4]), #KEYS - 1, tonumber(ARGV[8])
local wanted = math.max(id + 1, tonumber(first), last - tonumber(ARGV[6]) + 1)
local oldest_bucket, newest = bucket_of(us, length), bucket_of(active, length)
if start >= 0 and (oldest_bucket < start or newest >= start + count) then
  return 'far'
end
local page, size = {epoch, digits(last), active, 0}, 0
for at = math.max(oldest_bucket, newest - count + 1), newest do
  local list = KEYS[2 + (start >= 0 and at - start or at % count)]
  local oldest = first_in(list)
  -- where some are gone in the middle, the next page tells
  if oldest and oldest > wanted and #page > 4 then
    break
  end
  wanted = math.max(wanted, oldest or 0)
  local more = oldest
  while more and #page - 4 < most and size < BYTES do
    local room = math.min(PART, most - #page + 4)
    local events = redis.call('LRANGE', list, wanted - oldest, wanted - oldest + room - 1)
    for _, event in ipairs(events) do
      page[#page + 1] = event
      size = size + #event
    end
    wanted = wanted + #events
    more = #events == room
  end
end
if ARGV[1] == '' then
  return page
end
local next_id, before = string.match(page[5] or '', '^%[(%d+),%d+,(%d+),')
if not follows or tonumber(next_id) ~= id + 1 then
  page[4] = 1
elseif before ~= us then
  return 'doubt'
end
return page
