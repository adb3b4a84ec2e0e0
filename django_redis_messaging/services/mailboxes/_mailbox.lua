-- A mailbox. The list ids holds the ids of its mails, in order. Beside it are a hash of entries by id, a ZSET of the ids
-- above the position that were marked as read, a ZSET of groups with the id of their unread mail, and the runs of ids that
-- a limit removed. The key newest holds "last-ms-epoch-acked". An entry is a JSON array,
--
--   [ms, count, sender, group, payload]
--
-- Scripts read and write its two numbers; all else is opaque to them.
--
-- Limits are a table {length, age (ms, 0: none)}. Mails beyond them are removed by writes and ignored by reads.

-- Names the keys of a mailbox, which are in the order of MailboxKeys.all_keys.
local function mailbox_at(keys)
  return {
    newest = keys[1], ids = keys[2], mail = keys[3], marked = keys[4], groups = keys[5], lost = keys[6],
    requests = {keys[7], keys[8]}, fetched = keys[9],
  }
end

-- the value of newest: last, ms, epoch and acked
local NEWEST = '^(%d+)-(%d+)-(%d+)-(%d+)$'

-- Returns last, ms, epoch and acked; nil if no mail was ever sent.
local function read_newest(box)
  local value = redis.call('GET', box.newest)
  if not value then
    return nil
  end
  local last, ms, epoch, acked = string.match(value, NEWEST)
  return tonumber(last), tonumber(ms), epoch, tonumber(acked)
end

-- The ms at which a mail was sent; -1 if its entry has expired or was removed.
local function mail_ms(box, id)
  local entry = redis.call('HGET', box.mail, id)
  return entry and tonumber(string.match(entry, '^%[(%d+)')) or -1
end

local function id_at(box, rank)
  return redis.call('LINDEX', box.ids, rank)
end

-- Finds the first rank from `low` to `high` that is not before what is searched, by binary search.
local function search_rank(low, high, is_before)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(middle) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Returns how many mails have a lower id than this one. Where no mail was removed between the oldest and the newest, there
-- is nothing to search.
local function rank_of(box, id)
  local length = redis.call('LLEN', box.ids)
  if length == 0 then
    return 0
  end
  local low = math.min(math.max(length + id - id_at(box, -1) - 1, 0), length)
  local high = math.min(math.max(id - id_at(box, 0), 0), length)
  return search_rank(low, high, function(rank)
    return tonumber(id_at(box, rank)) < id
  end)
end

-- Finds the rank of the first mail sent at `ms` or later: times in a mailbox never decrease.
local function find_rank_since(box, low, high, ms)
  return search_rank(low, high, function(rank)
    return mail_ms(box, id_at(box, rank)) < ms
  end)
end

-- Returns how many of the oldest mails are beyond the limits, and how many mails there are in all. With
-- `ignore_age` only the length limit counts.
local function count_excess(box, now, limits, ignore_age)
  local length = redis.call('LLEN', box.ids)
  local excess = math.max(length - limits.length, 0)
  local oldest = limits.age > 0 and now - limits.age or 0
  if excess == length or ignore_age or mail_ms(box, id_at(box, excess)) >= oldest then
    return excess, length
  end
  return find_rank_since(box, excess, length, oldest), length
end

-- The first id within the limits, if `excess` mails are beyond them.
local function first_id(box, excess)
  return tonumber(id_at(box, excess)) or math.huge
end

-- Removes what marks the mails `from` to `to` as read, or as the unread mail of a group.
local function unmark(box, from, to)
  redis.call('ZREMRANGEBYSCORE', box.marked, from, to)
  redis.call('ZREMRANGEBYSCORE', box.groups, from, to)
end

-- Removes one mail, probably one of the latest.
local function remove(box, id)
  redis.call('HDEL', box.mail, id)
  redis.call('LREM', box.ids, -1, id)
  unmark(box, id, id)
end

-- Records ids that a limit removed, in ascending order, so that readers learn the size of the gap.
local MAX_RUNS = 1000
local function record_lost(box, ids)
  local latest = redis.call('ZRANGE', box.lost, -1, -1, 'WITHSCORES')
  local from, to = latest[1], tonumber(latest[2])
  local first_from = from
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
  if from ~= first_from then
    redis.call('ZREMRANGEBYRANK', box.lost, 0, -MAX_RUNS - 1)
  end
end

-- Removes mails beyond the limits, at most MAX_REMOVED at a time.
local MAX_REMOVED = 500
local function trim(box, excess)
  if excess > 0 then
    local ids = redis.call('LPOP', box.ids, math.min(excess, MAX_REMOVED))
    redis.call('HDEL', box.mail, unpack(ids))
    unmark(box, '-inf', ids[#ids])
    record_lost(box, ids)
  end
end

-- Counts the mails with an id above `id` that a limit removed; `first` is the first id within the limits.
local function count_gap(box, id, first)
  local gap = math.max(rank_of(box, first) - rank_of(box, id + 1), 0)
  local runs = redis.call('ZRANGEBYSCORE', box.lost, '(' .. id, '+inf', 'WITHSCORES')
  for at = 1, #runs, 2 do
    gap = gap + runs[at + 1] - math.max(runs[at] - 1, id)
  end
  return gap
end

-- Whether a cursor {id, epoch, ms} was made from a mail of this mailbox. Three kinds are always valid: a bare id has
-- no epoch (''), a cursor of an empty mailbox has the epoch 0, and the position before all mails has the time 0.
-- `epoch` is nil if no mail was ever sent. If data was rolled back, ids are given out again to mails sent later:
-- comparing times detects that, even if the mail of the cursor has been discarded.
local function is_cursor_valid(box, last, epoch, cursor)
  if cursor.epoch == '' or cursor.epoch == '0' then
    return true
  end
  if cursor.epoch ~= epoch or cursor.id > last then
    return false
  end
  local ms, sent_ms = tonumber(cursor.ms), mail_ms(box, cursor.id)
  if ms == 0 or sent_ms == ms then
    return true
  end
  local rank = rank_of(box, cursor.id + 1)
  return sent_ms == -1 and (rank == 0 or mail_ms(box, id_at(box, rank - 1)) <= ms)
end
