-- A member's position (the id up to which it has acked) and what it has not read. The ZSET own has the entries that
-- members have sent while they were behind: the user, NUL and the id, all with the same score. So those of one user
-- are adjacent, in order, and unread is computed without them.
-- The score of a member of a direct chat who has blocked the other one is half above the position (_members.lua).
--
-- What a user has seen of a chat is stored in the user's index of chats, in the form of newest: its value when the user
-- had acked everything. Numbers are 0 where nothing is known: all of them while the user is joining, all but the epoch for
-- a member who has never acked everything; and all but the epoch and the id after data loss was reported to the user. The
-- id is then the one above the position, so that the loss is reported until the position has reached it.
--
-- uses _log.lua

-- Returns the position; nil if the user is not a member, or is suspended, which is the second value.
local function read_position(members, user)
  local score = redis.call('ZSCORE', members, user)
  if not score or score % 1 == 0.5 then
    return nil, score
  end
  return math.floor(score)
end

local function own_entry(user, id)
  return user .. '\0' .. string.format('%016.0f', id)
end

-- Moves a member's position forward to `id`. Acks work on a full server: they begin with a removal.
local function move_position(members, own, user, id)
  redis.call('ZREMRANGEBYLEX', own, '[' .. user .. '\0', '[' .. own_entry(user, id))
  redis.call('ZADD', members, id, user)
end

-- Changes the number by which chats/changes notices that a position was moved. `step` is random, so that it becomes
-- another number after data loss. A position that is hidden doesn't count: others would learn that it was moved. Keys of
-- another type are no error, and a key that was lost stays so: the number is of use only with what else they hold.
local function count_move(info, hidden, user, step)
  if redis.pcall('SISMEMBER', hidden, user) == 1 then
    return
  end
  if redis.pcall('HINCRBY', info, 'moved', step) == tonumber(step) and redis.call('HEXISTS', info, 'created') == 0 then
    redis.call('HDEL', info, 'moved')
  end
end

-- Counts the entries above the position that are within the limits, without the member's own.
local function count_unread(own, first, last, position, user)
  local from = math.max(position, first - 1)
  if from >= last then
    return 0
  end
  return last - from - redis.call('ZLEXCOUNT', own, '(' .. own_entry(user, from), '(' .. user .. '\1')
end

-- Returns the stamp of an entry, "ms-nonce"; '0-0' if the entry is no longer in the list.
local function stamp_of(chat, log, stored, id)
  if id == chat.last and id > 0 then
    return chat.stamp
  end
  local entry = id >= stored and redis.call('LINDEX', log, id - stored)
  if not entry then
    return '0-0'
  end
  local ms, nonce = string.match(entry, '^%[(%d+),(%d+)')
  return ms .. '-' .. nonce
end

-- Whether a cursor {id, epoch, stamp} still refers to the entry it was made from: that entry is there with the
-- same stamp, or has been removed and is not newer than the first one that is there. A bare id has no epoch ('') and
-- is always valid; before the first entry, only the epoch counts.
local function is_cursor_valid(chat, log, stored, cursor)
  if cursor.epoch == '' then
    return true
  end
  if cursor.epoch ~= chat.epoch or cursor.id > chat.last then
    return false
  end
  if cursor.id == 0 then
    return true
  end
  if cursor.id == chat.last or cursor.id >= stored then
    return stamp_of(chat, log, stored, cursor.id) == cursor.stamp
  end
  local oldest = redis.call('LINDEX', log, 0)
  local ms = tonumber(string.match(cursor.stamp, '^%d+'))
  return ms <= (oldest and entry_ms(oldest) or tonumber(chat.ms))
end

-- Whether Redis lost what the user had seen: the chat has another epoch, the position is lower than before although
-- positions never move back, or another entry has the id of the one that was the newest. While the position stays,
-- the loss is reported again.
local function has_lost_data(seen, position, chat, log, stored)
  local last, stamp, epoch = string.match(seen, '^(%d+)-(%d+-%d+)-(%d+)-')
  if epoch == '0' then
    return false
  end
  local newest_seen = {id = tonumber(last), epoch = epoch, stamp = stamp}
  if epoch ~= chat.epoch or position < newest_seen.id then
    return true
  end
  return stamp ~= '0-0' and not is_cursor_valid(chat, log, stored, newest_seen)
end
