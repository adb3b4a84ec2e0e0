-- Broadcast channels. A channel's head is "last-us-epoch-first": id and time (µs) of the newest event, the epoch,
-- and the first id that the length limit has left. An event is a JSON array [id, us, us of the previous event,
-- payload]. Its time is the server's, and later than the previous event's. Each event carries the time of the
-- previous one, so that a reader can verify that the event it read last is still the one before.
--
-- Events are stored in lists, one for every `length` ms: bucket n is at place n % count of a ring of keys.
--
-- uses common/_time.lua

-- Names the keys of a channel, which are in the order of BroadcastKeys.fixed. The ring of buckets, or a part of it,
-- follows them; fetch.lua takes the head and buckets only.
local function broadcast_at(keys)
  return {head = keys[1], requests = {keys[2], keys[3]}, bell = keys[4], waiting = keys[5]}
end

-- the value of head: last, us, epoch, first
local HEAD = '^(%d+)-(%d+)-(%d+)-(%d+)$'

-- Returns last, us, epoch, first of a channel; nil if the channel doesn't exist.
local function read_head(key)
  local head = redis.call('GET', key)
  if not head then
    return nil
  end
  local last, us, epoch, first = string.match(head, HEAD)
  return tonumber(last), us, epoch, first
end

local function format_head(last, us, epoch, first)
  return digits(last) .. '-' .. us .. '-' .. epoch .. '-' .. digits(first)
end

-- The number of the bucket that holds events of this time.
local function bucket_at(us, length)
  return math.floor(tonumber(us) / 1000 / length)
end

-- The id of the first event of a bucket; nil if the bucket is empty.
local function first_id(bucket)
  local event = redis.call('LINDEX', bucket, 0)
  return event and tonumber(string.match(event, '^%[(%d+),'))
end
