-- A chat's log: a list in which the entry with id i is at index i - first, where first is last - length + 1. The
-- key newest holds what most scripts need, "last-ms-epoch-keep": id and time of the newest entry, the chat's
-- epoch, and the number of entries kept for scroll-back. An entry is a JSON array,
--
--   [ms, count, edited, sender bytes, body bytes, sender, body, (reply_to, data)]
--
-- Scripts read and write its five numbers; all else is opaque to them except for the two lengths. `edited` is 0,
-- the ms of the last edit, or minus the ms of the deletion. `count` is 0 if the sender had read everything
-- before the entry and therefore counts the entry as read; otherwise it is the number of entries the sender has
-- sent since falling behind, this one included. Together with the hash counts (entries that a member has sent
-- since falling behind, and how many of them are up to its position), unread is computed without the member's own.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Returns last, ms, epoch, keep and the value of newest; nil if the chat does not exist.
local function read_newest(newest)
  local value = redis.call('GET', newest)
  if not value then
    return nil
  end
  local last, ms, epoch, keep = string.match(value, '^(%d+)-(%d+)-(%d+)-(%d+)$')
  return tonumber(last), tonumber(ms), epoch, tonumber(keep), value
end

local function first_id(log, last)
  return last - redis.call('LLEN', log) + 1
end

-- Removes entries with ids below `from`; returns the new first id.
local function trim_before(log, first, from)
  if from <= first then
    return first
  end
  redis.call('LTRIM', log, from - first, -1)
  return from
end

-- Finds the first id whose time is `ms` or later, by binary search: times in a log never decrease.
local function find_first_since(log, first, last, ms)
  local low, high = first, last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry_ms(redis.call('LINDEX', log, middle - first)) < ms then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Applies limits.length and limits.age (ms, 0: none); returns the first id. Reads apply them as well as writes.
local function apply_limits(log, first, last, now, limits)
  local from = math.max(first, last - limits.length + 1)
  if limits.age > 0 and from <= last then
    local oldest = redis.call('LINDEX', log, from - first)
    if oldest and entry_ms(oldest) < now - limits.age then
      from = find_first_since(log, first, last, now - limits.age)
    end
  end
  return trim_before(log, first, from)
end

-- Removes entries that all members have acked, except the newest `keep`; returns the first id.
local function trim_acked(members, log, first, last, keep)
  if last - first < keep then
    return first
  end
  local lowest = redis.call('ZRANGE', members, 0, 0, 'WITHSCORES')
  return trim_before(log, first, math.min(tonumber(lowest[2]), last - keep) + 1)
end
