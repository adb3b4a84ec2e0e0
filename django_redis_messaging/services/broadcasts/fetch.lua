-- Reads the events after a position, in order.
--
-- reads only
-- uses _broadcast.lua
-- uses common/_time.lua
--
-- KEYS  1 head
-- KEYS  2… ring of buckets, or some consecutive ones
-- ARGV  1 epoch of the position, or '' to read from the oldest event
-- ARGV  2 id of the event that was read last
-- ARGV  3 time of that event: µs
-- ARGV  4 maximum number of events
-- ARGV  5 length of a bucket: ms
-- ARGV  6 maximum number of events in the channel
-- ARGV  7 how long an idle channel is kept: ms
-- ARGV  8 number of the first bucket given; -1 if all of the ring is given
-- Returns 'none' if the channel doesn't exist; 'idle' if there is no newer event, or 'expiring' if in addition half
-- of the channel's TTL is over; 'lost' if the event that was read last is not in the channel's history; 'far' if
-- events are in buckets that were not given; else {epoch, last, us, missed, event, …}
local head, known_epoch = KEYS[1], ARGV[1]
local id, us, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local length, max_length, idle_ttl = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local start = tonumber(ARGV[8])
-- A page ends with the read that reaches PAGE_BYTES; each read returns at most READ_SIZE events.
local PAGE_BYTES, READ_SIZE = 1048576, 50

local last, active, epoch, first = read_head(head)
if not last then
  return 'none'
end
local same_epoch = known_epoch == epoch
if same_epoch and (id > last or (id == last and us ~= active)) then
  return 'lost'
elseif same_epoch and id == last then
  return redis.call('PTTL', head) < idle_ttl / 2 and 'expiring' or 'idle'
elseif not same_epoch then
  id, us = 0, '0'
end

local count = #KEYS - 1
local wanted = math.max(id + 1, tonumber(first), last - max_length + 1)
local oldest_bucket, newest_bucket = bucket_at(us, length), bucket_at(active, length)
if start >= 0 and (oldest_bucket < start or newest_bucket >= start + count) then
  return 'far'
end
local page, size = {epoch, digits(last), active, 0}, 0
for number = math.max(oldest_bucket, newest_bucket - count + 1), newest_bucket do
  local bucket = KEYS[2 + (start >= 0 and number - start or number % count)]
  local oldest = first_id(bucket)
  -- A gap inside the page: the next page begins with it, and reports it.
  if oldest and oldest > wanted and #page > 4 then
    break
  end
  wanted = math.max(wanted, oldest or 0)
  local more = oldest
  while more and #page - 4 < limit and size < PAGE_BYTES do
    local room = math.min(READ_SIZE, limit - #page + 4)
    local events = redis.call('LRANGE', bucket, wanted - oldest, wanted - oldest + room - 1)
    for _, event in ipairs(events) do
      page[#page + 1] = event
      size = size + #event
    end
    wanted = wanted + #events
    more = #events == room
  end
end
if known_epoch == '' then
  return page
end
local next_id, previous = string.match(page[5] or '', '^%[(%d+),%d+,(%d+),')
if not same_epoch or tonumber(next_id) ~= id + 1 then
  page[4] = 1
elseif previous ~= us then
  return 'lost'
end
return page
