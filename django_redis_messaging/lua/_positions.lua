-- How far a member has read, and what is beyond. Goes with _log.lua, which tells what `count` is.

-- How many of a member's own entries have an id above `id`, of `sent` since the member fell behind: the
-- first of them carries its count. `author` is the member as JSON.
local function own_after(log, first, last, id, author, sent)
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

-- Of a member who is behind: its own entries since, and how many of them up to its position.
local function counted(counts, member)
  local both = redis.call('HMGET', counts, 's' .. member, 'a' .. member)
  return tonumber(both[1] or 0), tonumber(both[2] or 0)
end

-- Moves a member's position to `id`, above the one it has. Redis refuses no HDEL for want of memory, nor
-- what a script writes after it: so acks work when memory is full.
local function move(members, counts, log, first, last, member, author, id)
  if id == last then
    redis.call('HDEL', counts, 's' .. member, 'a' .. member)
  else
    redis.call('HDEL', counts, '')
    local sent, acked = counted(counts, member)
    if sent > acked then
      redis.call('HSET', counts, 'a' .. member, sent - own_after(log, first, last, id, author, sent))
    end
  end
  redis.call('ZADD', members, id, member)
end

-- Unread: what is above the position and still there, less the member's own.
local function unread(counts, log, first, last, position, member, author)
  local from = math.max(position, first - 1)
  if from >= last then
    return 0
  end
  local sent, acked = counted(counts, member)
  local own = sent - acked
  if own > 0 and from > position then
    own = own_after(log, first, last, from, author, sent)
  end
  return last - from - own
end

-- Whether the log's entry `id` is the one a cursor was made of: same epoch, same time. A bare id has no
-- epoch ('') and is trusted; of an entry that is gone, or of a cursor made of no entry (ms 0), only the
-- epoch can be compared.
local function is_ours(log, first, last, epoch, id, cursor_epoch, cursor_ms)
  if cursor_epoch == '' then
    return true
  end
  if cursor_epoch ~= epoch or id > last then
    return false
  end
  return id < first or cursor_ms == '0' or entry_ms(redis.call('LINDEX', log, id - first)) == tonumber(cursor_ms)
end
