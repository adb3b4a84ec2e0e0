-- A chat's log: a list whose entry with id i is at index i - first. An entry is a JSON array,
--
--   [ms, count, edited, sender bytes, body bytes, sender, body, (reply_to, data)]
--
-- whose five numbers are written by scripts, and whose rest is opaque to them, but for its lengths:
-- count is the sender's running count, edited is 0, the ms of the edit, or minus the ms of the deletion.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Removes what is older than id `from`; returns the new first id.
local function cut(info, log, first, from)
  if from <= first then
    return first
  end
  redis.call('LTRIM', log, from - first, -1)
  redis.call('HSET', info, 'first', from)
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
local function limited(info, log, first, last, now, max_length, max_age)
  local from = math.max(first, last - max_length + 1)
  if max_age > 0 and from <= last then
    local head = redis.call('LINDEX', log, from - first)
    if head and entry_ms(head) < now - max_age then
      from = first_since(log, first, last, now - max_age)
    end
  end
  return cut(info, log, first, from)
end

-- Removes what all members have acked, but for the last `keep`; returns the first id.
local function released(info, members, log, first, last, keep)
  if last - first < keep then
    return first
  end
  local least = redis.call('ZRANGE', members, 0, 0, 'WITHSCORES')
  return cut(info, log, first, math.min(tonumber(least[2]), last - keep) + 1)
end

-- How many entries with an id above `id` are by the sender who has sent `sent`: the first of them
-- carries the sender's running count. `author` is the sender as JSON.
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

-- Of a member's own messages: how many were sent, and how many of them up to the acked id.
local function counted(counts, member)
  local both = redis.call('HGET', counts, member)
  if not both then
    return 0, 0
  end
  local sent, acked = string.match(both, '^(%d+) (%d+)$')
  return tonumber(sent), tonumber(acked)
end

-- Moves a member's position to `id`, above the one it has. Redis refuses no ZREM for want of memory, nor
-- what a script writes after it: so acks work when memory is full.
local function move(members, counts, log, first, last, member, author, id)
  redis.call('ZREM', members, '')
  local sent, acked = counted(counts, member)
  if sent > acked then
    local beyond = id < last and own_after(log, first, last, id, author, sent) or 0
    redis.call('HSET', counts, member, sent .. ' ' .. sent - beyond)
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
-- epoch ('') and is trusted; of an entry that is gone only the epoch can be compared.
local function is_ours(log, first, last, epoch, id, cursor_epoch, cursor_ms)
  if cursor_epoch == '' then
    return true
  end
  if cursor_epoch ~= epoch or id > last then
    return false
  end
  return id < first or entry_ms(redis.call('LINDEX', log, id - first)) == tonumber(cursor_ms)
end
