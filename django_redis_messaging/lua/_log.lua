-- A chat's log: a list in which the entry with id i is at index i - stored, where stored is last - length + 1, the
-- id of the first entry in the list. The key newest holds what most scripts need, "last-ms-nonce-epoch-keep": id,
-- time and nonce of the newest entry, the chat's epoch, and the number of entries kept for scroll-back; "-x" at its
-- end if the list expires. An entry is a JSON array,
--
--   [ms, nonce, edited, sender bytes, body bytes, sender, body, (reply_to, data)]
--
-- Scripts read and write its five numbers; all else is opaque to them except for the two lengths. "ms-nonce" is the
-- entry's stamp: if Redis has lost an entry and another one got its id, the stamps differ, even if the clock was
-- set back. `edited` is 0, the ms of the last edit, or minus the ms of the deletion.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Returns the chat as {last, ms, stamp, epoch, keep, "-x" or "", value of newest}; nil if it does not exist.
local function read_chat(newest)
  local value = redis.call('GET', newest)
  if not value then
    return nil
  end
  local last, stamp, ms, epoch, keep, mark = string.match(value, '^(%d+)-((%d+)-%d+)-(%d+)-(%d+)(%-?x?)$')
  return {
    last = tonumber(last), ms = ms, stamp = stamp, epoch = epoch, keep = tonumber(keep), mark = mark, value = value,
  }
end

-- Returns the value of newest for a new entry; its content begins with the nonce.
local function newest_value(id, ms, content, epoch, keep, limits)
  local nonce = string.match(content, '^%d+') or '0'
  return id .. '-' .. ms .. '-' .. nonce .. '-' .. epoch .. '-' .. keep .. (limits.age > 0 and '-x' or '')
end

local function first_stored(log, last)
  return last - redis.call('LLEN', log) + 1
end

-- Removes entries with ids below `from`, at most 500 in one call, since freeing 2000 large ones takes over 5 ms;
-- later calls remove the others. Returns the id of the first entry in the list.
local function trim_before(log, stored, last, from)
  if from <= stored then
    return stored
  end
  if from > last then
    redis.call('UNLINK', log)
    return last + 1
  end
  local to = math.min(from, stored + 500)
  redis.call('LTRIM', log, to - stored, -1)
  return to
end

-- Finds the first id whose time is `ms` or later, by binary search: times in a log never decrease.
local function find_first_since(log, stored, first, last, ms)
  local low, high = first, last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry_ms(redis.call('LINDEX', log, middle - stored)) < ms then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- Returns the id of the first entry within limits.length and limits.age (ms, 0: none).
local function first_allowed(log, stored, last, now, limits)
  local first = math.max(stored, last - limits.length + 1)
  if limits.age > 0 and first <= last then
    local oldest = redis.call('LINDEX', log, first - stored)
    if entry_ms(oldest) < now - limits.age then
      first = find_first_since(log, stored, first, last, now - limits.age)
    end
  end
  return first
end

-- Applies the limits. Reads do so as well as writes. Returns the id of the first entry within the limits, and that of
-- the first entry in the list, which may be lower.
local function apply_limits(log, stored, last, now, limits)
  local first = first_allowed(log, stored, last, now, limits)
  return first, trim_before(log, stored, last, first)
end

-- Sets the log to expire with its newest entry, sent at `ms`: nobody might read or write an idle chat again. `mark` is
-- what newest said before about the expiry.
local function set_expiry(log, mark, ms, limits)
  if limits.age > 0 then
    redis.call('PEXPIREAT', log, string.format('%.0f', ms + limits.age + 1))
  elseif mark ~= '' then
    redis.call('PERSIST', log)
  end
end

-- Returns the first id that is kept for members: all of them have acked those below, except the newest `keep`.
local function first_kept(members, stored, last, keep)
  if last - stored < keep then
    return stored
  end
  local lowest = redis.call('ZRANGE', members, 0, 0, 'WITHSCORES')
  return math.max(stored, math.min(tonumber(lowest[2] or 0), last - keep) + 1)
end

local function trim_acked(members, log, stored, last, keep)
  trim_before(log, stored, last, first_kept(members, stored, last, keep))
end

-- Applies the limits, and what is kept for members. Returns the same as apply_limits.
local function apply_retention(chat, members, log, now, limits)
  local stored = first_stored(log, chat.last)
  local first = first_allowed(log, stored, chat.last, now, limits)
  first = math.max(first, first_kept(members, stored, chat.last, chat.keep))
  return first, trim_before(log, stored, chat.last, first)
end
