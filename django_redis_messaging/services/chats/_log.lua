-- A chat's log: a list in which the entry with id i is at index i - stored, where stored is last - length + 1, the
-- id of the first entry in the list. The key newest holds what most scripts need, "last-ms-nonce-epoch-keep-total":
-- id, time and nonce of the newest entry, the chat's epoch, the number of entries kept for scroll-back, and the bytes of
-- all entries that were ever appended; "-x" at its end if the list expires. An entry is a JSON array,
--
--   [ms, nonce, edited, sender bytes, body bytes, sender, body, (reply_to, data, (mentions)), offset, size]
--
-- Scripts read and write its seven numbers; all else is opaque to them except for the two lengths. The offset is the
-- total before the entry, so that the bytes of the list are the total less the offset of its first entry. The size, in
-- bytes without these two numbers, is the largest that the entry ever had: an edit that exceeds it adds to the total, as
-- if the rest had been appended, and editing or deleting returns nothing. "ms-nonce" is the
-- entry's stamp: if Redis has lost an entry and another one got its id, the stamps differ, even if the clock was
-- set back. `edited` is 0, the ms of the last edit, or minus the ms of the deletion.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Returns the chat as {last, ms, stamp, epoch, keep, total, "-x" or "", value of newest}; nil if it does not exist.
local function read_chat(newest)
  local value = redis.call('GET', newest)
  if not value then
    return nil
  end
  local last, stamp, ms, epoch, keep, total, mark =
    string.match(value, '^(%d+)-((%d+)-%d+)-(%d+)-(%d+)-(%d+)(%-?x?)$')
  return {
    last = tonumber(last), ms = ms, stamp = stamp, epoch = epoch, keep = tonumber(keep), total = tonumber(total),
    mark = mark, value = value,
  }
end

local function format_newest(last, stamp, epoch, keep, total, mark)
  return table.concat({last, stamp, epoch, keep, string.format('%.0f', total)}, '-') .. mark
end

-- Returns the value of newest for a new entry; its content begins with the nonce.
local function newest_value(id, ms, content, epoch, keep, total, limits)
  local nonce = string.match(content, '^%d+') or '0'
  return format_newest(id, ms .. '-' .. nonce, epoch, keep, total, limits.age > 0 and '-x' or '')
end

-- Returns a new entry and its size. The content is what follows the ms, without "]".
local function new_entry(ms, content, offset)
  local head = '[' .. ms .. ',' .. content
  return string.format('%s,%.0f,%d]', head, offset, #head), #head
end

-- Returns the offset and the size of an entry; neither for one that this app has not written.
local function read_extent(entry)
  local offset, size = string.match(string.sub(entry, -32), ',(%d+),(%d+)%]$')
  return tonumber(offset), tonumber(size)
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

-- Maximum size of the entries in a reply: bytes. A reply has at least one entry.
local MAX_BYTES = 262144

-- Reads the entries from id `from` to `to`, as many as fit into `max_bytes`. The first ten show how many more fit.
local function read_entries(log, stored, from, to, max_bytes)
  local entries, size, count = {}, 0, 10
  while from <= to do
    for _, entry in ipairs(redis.call('LRANGE', log, from - stored, math.min(from + count - 1, to) - stored)) do
      size = size + #entry
      if size > max_bytes and #entries > 0 then
        return entries
      end
      entries[#entries + 1] = entry
    end
    from = from + count
    count = math.max(math.floor((max_bytes - size) * #entries / math.max(size, 1)), 1)
  end
  return entries
end

-- Like read_entries, but reads the last ones that fit. They are in the order of the log.
local function read_entries_before(log, stored, from, to, max_bytes)
  local reversed, size, count = {}, 0, 10
  while from <= to do
    local chunk = redis.call('LRANGE', log, math.max(to - count + 1, from) - stored, to - stored)
    for at = #chunk, 1, -1 do
      size = size + #chunk[at]
      if size > max_bytes and #reversed > 0 then
        to = from - 1
        break
      end
      reversed[#reversed + 1] = chunk[at]
    end
    to = to - count
    count = math.max(math.floor((max_bytes - size) * #reversed / math.max(size, 1)), 1)
  end
  local entries = {}
  for at = #reversed, 1, -1 do
    entries[#entries + 1] = reversed[at]
  end
  return entries
end

-- Finds the first id from `first` on whose entry is kept, if all entries after that are kept, too. Most often, few are
-- not: so the steps begin at one, and double.
local function find_first_kept(log, stored, first, last, is_kept)
  local low, high, step = first, first, 1
  while high <= last and not is_kept(redis.call('LINDEX', log, high - stored)) do
    low, high, step = high + 1, high + step, step * 2
  end
  high = math.min(high, last + 1)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_kept(redis.call('LINDEX', log, middle - stored)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Returns the id of the first entry within limits.length, limits.bytes and limits.age (ms, 0: none). The newest entry is
-- within the limit of bytes.
local function first_allowed(log, stored, chat, now, limits)
  local last = chat.last
  local first = math.max(stored, last - limits.length + 1)
  if chat.total > limits.bytes and first < last then
    first = find_first_kept(log, stored, first, last - 1, function(entry)
      return chat.total - (read_extent(entry) or 0) <= limits.bytes
    end)
  end
  if limits.age > 0 then
    first = find_first_kept(log, stored, first, last, function(entry)
      return entry_ms(entry) >= now - limits.age
    end)
  end
  return first
end

-- Applies the limits. Reads do so as well as writes. Returns the id of the first entry within the limits, and that of
-- the first entry in the list, which may be lower.
local function apply_limits(log, stored, chat, now, limits)
  local first = first_allowed(log, stored, chat, now, limits)
  return first, trim_before(log, stored, chat.last, first)
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
  -- A member who is suspended keeps what they have not read: otherwise its removal would tell the other one.
  return math.max(stored, math.min(math.floor(lowest[2] or 0), last - keep) + 1)
end

local function trim_acked(members, log, stored, last, keep)
  trim_before(log, stored, last, first_kept(members, stored, last, keep))
end

-- Applies the limits, and what is kept for members. Returns the same as apply_limits.
local function apply_retention(chat, members, log, now, limits)
  local stored = first_stored(log, chat.last)
  local first = first_allowed(log, stored, chat, now, limits)
  first = math.max(first, first_kept(members, stored, chat.last, chat.keep))
  return first, trim_before(log, stored, chat.last, first)
end
