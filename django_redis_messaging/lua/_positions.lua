-- A member's position (the id up to which it has acked) and what it has not read. _log.lua explains `count`.
--
-- uses _log.lua
-- uses _memory.lua

-- Counts the member's own entries above `id`. The first one found carries its number among the `sent` entries
-- that the member has sent since falling behind. `author` is the member as JSON.
local function count_own_after(log, first, last, id, author, sent)
  local at = math.max(id + 1, first)
  while at <= last do
    for _, entry in ipairs(redis.call('LRANGE', log, at - first, at - first + 99)) do
      local count, start = string.match(entry, '^%[%d+,(%d+),%-?%d+,%d+,%d+,()')
      if string.sub(entry, start, start + #author) == author .. ',' then
        return sent - count + 1
      end
    end
    at = at + 100
  end
  return 0
end

-- Returns how many entries the member has sent since falling behind, and how many of them are up to its position.
local function read_counts(counts, member)
  local values = redis.call('HMGET', counts, 's' .. member, 'a' .. member)
  return tonumber(values[1] or 0), tonumber(values[2] or 0)
end

-- Moves a member's position forward to `id`. Acks work on a full server: each branch begins with HDEL.
local function move_position(members, counts, log, first, last, member, author, id)
  if id == last then
    redis.call('HDEL', counts, 's' .. member, 'a' .. member)
  else
    allow_writes_when_full(counts)
    local sent, acked = read_counts(counts, member)
    if sent > acked then
      redis.call('HSET', counts, 'a' .. member, sent - count_own_after(log, first, last, id, author, sent))
    end
  end
  redis.call('ZADD', members, id, member)
end

-- Counts the entries above the position that are still in the log, without the member's own.
local function count_unread(counts, log, first, last, position, member, author)
  local from = math.max(position, first - 1)
  if from >= last then
    return 0
  end
  local sent, acked = read_counts(counts, member)
  local own = sent - acked
  if own > 0 and from > position then
    own = count_own_after(log, first, last, from, author, sent)
  end
  return last - from - own
end

-- Whether a cursor {id, epoch, ms} still refers to the entry it was made from: same epoch, same time. A bare id
-- has no epoch ('') and is always valid. Only the epoch can be compared if the entry has been removed, or if the
-- cursor was made without an entry (ms 0).
local function is_cursor_valid(log, first, last, epoch, cursor)
  if cursor.epoch == '' then
    return true
  end
  if cursor.epoch ~= epoch or cursor.id > last then
    return false
  end
  return cursor.id < first or cursor.ms == '0'
    or entry_ms(redis.call('LINDEX', log, cursor.id - first)) == tonumber(cursor.ms)
end
