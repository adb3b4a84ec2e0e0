-- A chat's log: a list whose entry with id i is at index i - first, where first is last - length + 1. The
-- key beside it, newest, has what most scripts need: "last-ms-epoch-keep", the id and time of the newest
-- entry, the chat's epoch, and how many entries stay for scroll-back. An entry is a JSON array,
--
--   [ms, count, edited, sender bytes, body bytes, sender, body, (reply_to, data)]
--
-- whose five numbers are written by scripts, and whose rest is opaque to them, but for its lengths: edited
-- is 0, the ms of the edit, or minus the ms of the deletion. count is 0 where the sender had read all that
-- is before the entry, and so the entry too; else it counts the sender's entries since then. With it, and
-- with what the hash of counts says of a member who is behind (sent since then, and how many of those up to
-- the position), unread is arithmetic: it leaves out the member's own.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Of a chat: last, ms, epoch, keep, and the line itself; nil where there is no such chat.
local function newest_of(newest)
  local line = redis.call('GET', newest)
  if not line then
    return nil
  end
  local last, ms, epoch, keep = string.match(line, '^(%d+)-(%d+)-(%d+)-(%d+)$')
  return tonumber(last), tonumber(ms), epoch, tonumber(keep), line
end

local function first_of(log, last)
  return last - redis.call('LLEN', log) + 1
end

-- Removes what is older than id `from`; returns the new first id.
local function cut(log, first, from)
  if from <= first then
    return first
  end
  redis.call('LTRIM', log, from - first, -1)
  return from
end

-- The first id that is not older than `moment`. Times in a log never go back.
local function first_since(log, first, last, moment)
  local low, high = first, last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry_ms(redis.call('LINDEX', log, middle - first)) < moment then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Applies the limits of length and age (0: none), which hold on write and on read; returns the first id.
local function limited(log, first, last, now, max_length, max_age)
  local from = math.max(first, last - max_length + 1)
  if max_age > 0 and from <= last then
    local head = redis.call('LINDEX', log, from - first)
    if head and entry_ms(head) < now - max_age then
      from = first_since(log, first, last, now - max_age)
    end
  end
  return cut(log, first, from)
end

-- Removes what all members have acked, but for the last `keep`; returns the first id.
local function released(members, log, first, last, keep)
  if last - first < keep then
    return first
  end
  local least = redis.call('ZRANGE', members, 0, 0, 'WITHSCORES')
  return cut(log, first, math.min(tonumber(least[2]), last - keep) + 1)
end
