-- A mailbox. What is in it is a ZSET of ids, each its own score; beside it a hash of entries by id, a ZSET of
-- the ids above the position that were marked as read, one of groups with the id of their unread mail, and the
-- runs of ids that a limit removed. The key newest is "last-ms-epoch-acked". An entry is a JSON array,
--
--   [ms, count, sender, group, payload]
--
-- whose two numbers are written by scripts, and whose rest is opaque to them.
local function mailbox_at(keys)
  return {newest = keys[1], order = keys[2], mail = keys[3], marked = keys[4], groups = keys[5], lost = keys[6]}
end

-- Of a mailbox: last, ms, epoch, acked; nil where nothing was ever sent.
local function newest_mail(box)
  local line = redis.call('GET', box.newest)
  if not line then
    return nil
  end
  local last, ms, epoch, acked = string.match(line, '^(%d+)-(%d+)-(%d+)-(%d+)$')
  return tonumber(last), tonumber(ms), epoch, tonumber(acked)
end

-- When a mail was sent; -1 where its entry has expired.
local function mail_ms(box, id)
  local entry = redis.call('HGET', box.mail, id)
  return entry and tonumber(string.match(entry, '^%[(%d+)')) or -1
end

local function id_at(box, rank)
  return redis.call('ZRANGE', box.order, rank, rank)[1]
end

-- How many mails, the oldest, are beyond the limits of length and age (0: none), and how many there are. The
-- former count as removed for reads too, though only writes remove them. Times in a mailbox never go back.
-- Without `max_age` only the length is looked at.
local function beyond(box, now, max_length, max_age)
  local length = redis.call('ZCARD', box.order)
  local low = math.max(length - max_length, 0)
  local oldest = max_age and max_age > 0 and now - max_age or 0
  if low == length or not max_age or mail_ms(box, id_at(box, low)) >= oldest then
    return low, length
  end
  local high = length
  while low < high do
    local middle = math.floor((low + high) / 2)
    if mail_ms(box, id_at(box, middle)) < oldest then
      low = middle + 1
    else
      high = middle
    end
  end
  return low, length
end

-- The first id within the limits, where `over` mails are beyond them.
local function first_mail(box, over)
  return tonumber(id_at(box, over)) or math.huge
end

local function removed(box, from, to)
  for _, key in ipairs({box.marked, box.groups, box.order}) do
    redis.call('ZREMRANGEBYSCORE', key, from, to)
  end
end

-- Notes ids that a limit removed, in their order, so that readers can be told the gap.
local RUNS = 1000
local function note_lost(box, ids)
  local last = redis.call('ZRANGE', box.lost, -1, -1, 'WITHSCORES')
  local from, to = last[1], tonumber(last[2])
  local known = from
  for _, id in ipairs(ids) do
    if tonumber(id) ~= (to or -1) + 1 then
      if from then
        redis.call('ZADD', box.lost, to, from)
      end
      from = id
    end
    to = tonumber(id)
  end
  redis.call('ZADD', box.lost, to, from)
  if from ~= known then
    redis.call('ZREMRANGEBYRANK', box.lost, 0, -RUNS - 1)
  end
end

-- Removes what is beyond the limits: at most 500 at a time.
local function trimmed(box, over)
  if over > 0 then
    local ids = redis.call('ZRANGE', box.order, 0, math.min(over, 500) - 1)
    redis.call('HDEL', box.mail, unpack(ids))
    removed(box, '-inf', ids[#ids])
    note_lost(box, ids)
  end
end

-- How many mails with an id above `id` a limit removed; `first` is the first that is left.
local function gap_after(box, id, first)
  local gap = redis.call('ZCOUNT', box.order, '(' .. id, '(' .. first)
  local runs = redis.call('ZRANGEBYSCORE', box.lost, '(' .. id, '+inf', 'WITHSCORES')
  for at = 1, #runs, 2 do
    gap = gap + runs[at + 1] - math.max(runs[at] - 1, id)
  end
  return gap
end

-- Whether a cursor was made of a mail of this mailbox. A bare id has no epoch (''), one of an empty mailbox
-- has the epoch 0, the place before all mail has the time 0: these are trusted. `last` is nil where nothing was
-- ever sent. Where data was rolled back, ids are given out again, to mail that was sent later: times tell it
-- from what the cursor was made of, also where that very mail was discarded.
local function is_own(box, last, epoch, id, cursor_epoch, cursor_ms)
  if cursor_epoch == '' or cursor_epoch == '0' then
    return true
  end
  if cursor_epoch ~= epoch or id > last then
    return false
  end
  local ms, sent = tonumber(cursor_ms), mail_ms(box, id)
  if ms == 0 or sent == ms then
    return true
  end
  local before = redis.call('ZREVRANGEBYSCORE', box.order, id, '-inf', 'LIMIT', 0, 1)[1]
  return sent == -1 and (not before or mail_ms(box, before) <= ms)
end
