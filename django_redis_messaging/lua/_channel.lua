-- A channel's head is "last-us-epoch-first": id and time of the newest event, the epoch, and the first id
-- that the limit of length has left. An event is a JSON array [id, us, us of the one before, payload]; its
-- times are those of the server, and each is later than the one before. Since each event carries the time of
-- the one before, a reader can tell from the next one whether its own is still the one that was there.
--
-- Events are in lists, one for each `length` ms: bucket n is at place n % count of a ring of keys.

-- Of a channel: last, us, epoch, first; nil where there is none.
local function head_of(key)
  local line = redis.call('GET', key)
  if not line then
    return nil
  end
  local last, us, epoch, first = string.match(line, '^(%d+)-(%d+)-(%d+)-(%d+)$')
  return tonumber(last), us, epoch, first
end

local function head_line(last, us, epoch, first)
  return digits(last) .. '-' .. us .. '-' .. epoch .. '-' .. digits(first)
end

-- The number of the bucket for an event of that time.
local function bucket_of(us, length)
  return math.floor(tonumber(us) / 1000 / length)
end

-- The id of the first event of a list, or nil.
local function first_in(list)
  local event = redis.call('LINDEX', list, 0)
  return event and tonumber(string.match(event, '^%[(%d+),'))
end
