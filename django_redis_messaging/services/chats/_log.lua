-- A chat's log: a list in which the entry with id i is at index i - stored, where stored is last - length + 1, the
-- id of the first entry in the list. An entry is a JSON array,
--
--   [ms, nonce, edited, sender bytes, body bytes, sender, body, (reply_to, data, (mentions)), offset, size]
--
-- Scripts read and write its seven numbers; all else is opaque to them except for the two lengths. `edited` is 0, the ms
-- of the last edit, or minus the ms of the deletion. "ms-nonce" is the entry's stamp: if Redis has lost an entry and
-- another one got its id, the stamps differ, even if the clock was set back. The offset is the total of bytes before the
-- entry, so that the bytes of the list are the total less the offset of its first entry. The size, in bytes without these
-- two numbers, is the largest that the entry ever had: an edit that exceeds it adds to the total, as if the rest had been
-- appended, and editing or deleting returns nothing.
local function entry_ms(entry)
  return tonumber(string.match(entry, '^%[(%d+)'))
end

-- Returns a new entry and its size. The content is what follows the ms, without "]".
local function new_entry(ms, content, offset)
  local head = '[' .. ms .. ',' .. content
  local size = #head
  return head .. ',' .. offset .. ',' .. size .. ']', size
end

-- Returns the offset and the size of an entry; neither for one that this app has not written.
local function read_extent(entry)
  local offset, size = string.match(string.sub(entry, -32), ',(%d+),(%d+)%]$')
  return tonumber(offset), tonumber(size)
end

-- Parses an entry. `author` and `body` are JSON.
local function parse_entry(entry)
  local ms, nonce, edited, author_size, body_size, start =
    string.match(entry, '^%[(%d+),(%d+),(%-?%d+),(%d+),(%d+),()')
  local offset, size = read_extent(entry)
  local extent = string.format(',%.0f,%d]', offset, size)
  return {
    ms = ms,
    nonce = nonce,
    edited = tonumber(edited),
    author = string.sub(entry, start, start + author_size - 1),
    body = string.sub(entry, start + author_size + 1, start + author_size + body_size),
    optional = string.sub(entry, start + author_size + 1 + body_size, -1 - #extent),
    offset = offset,
    size = size,
  }
end

-- Formats a parsed entry with another body; `optional` is what follows the body, or ''. Returns the entry, and by how much
-- it exceeds its size before.
local function format_entry(parsed, edited, body, optional)
  local numbers = string.format('[%s,%s,%d,%d,%d,', parsed.ms, parsed.nonce, edited, #parsed.author, #body)
  local head = numbers .. parsed.author .. ',' .. body .. optional
  local size = math.max(#head, parsed.size)
  return string.format('%s,%.0f,%d]', head, parsed.offset, size), size - parsed.size
end

-- Returns a JSON string cut to at most `size` bytes and an ellipsis, not within a character or an escape.
local function cut_string(json, size)
  while string.find(json, '^[\128-\191]', size) do
    size = size - 1
  end
  local cut = string.sub(json, 1, size - 1)
  local slashes, rest = string.match(cut, '(\\*)(u?%x?%x?%x?)$')
  if #slashes % 2 == 1 then
    cut = string.sub(cut, 1, -2 - #rest)
  end
  return cut .. '…"'
end

-- Returns an entry for a list: a long one without what follows the body, which is cut to `size` bytes of JSON.
local function excerpt(entry, size)
  if #entry <= size then
    return entry
  end
  local parsed = parse_entry(entry)
  local body = #parsed.body > size and cut_string(parsed.body, size) or parsed.body
  return (format_entry(parsed, parsed.edited, body, ''))
end

local function first_stored(log, last)
  return last - redis.call('LLEN', log) + 1
end

-- Returns the entry with this id; nil if it is not in the log, or below `first`.
local function read_entry(log, stored, first, last, id)
  if id < first or id > last then
    return nil
  end
  return redis.call('LINDEX', log, id - stored)
end

-- Removes entries with ids below `from`, at most 500 in one call, because freeing 2000 large ones takes over 5 ms;
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

-- Returns the id of the first entry from `first` on that is within limits.bytes and limits.age (ms, 0: none).
-- rare
local function first_within(log, stored, first, chat, now, limits)
  if chat.total > limits.bytes and first < chat.last then -- the newest entry is within the limit of bytes
    first = find_first_kept(log, stored, first, chat.last - 1, function(entry)
      return chat.total - (read_extent(entry) or 0) <= limits.bytes
    end)
  end
  if limits.age > 0 then
    first = find_first_kept(log, stored, first, chat.last, function(entry)
      return entry_ms(entry) >= now - limits.age
    end)
  end
  return first
end

-- Returns the id of the first entry within the limits.
local function first_allowed(log, stored, chat, now, limits)
  local first = math.max(stored, chat.last - limits.length + 1)
  if limits.age > 0 or chat.total > limits.bytes then
    return first_within(log, stored, first, chat, now, limits)
  end
  return first
end

-- Applies the limits. Reads do so as well as writes. Returns the id of the first entry within the limits, and that of
-- the first entry in the list, which may be lower.
local function apply_limits(log, stored, chat, now, limits)
  local first = first_allowed(log, stored, chat, now, limits)
  return first, trim_before(log, stored, chat.last, first)
end

-- Sets the log to expire with its newest entry, sent at `ms`: nobody might read or write an idle chat again. `expires`:
-- whether it did before, as in newest; `max_age`: ms, or 0.
local function set_expiry(log, expires, ms, max_age)
  if max_age > 0 then
    redis.call('PEXPIREAT', log, ms + max_age + 1)
  elseif expires == '1' then
    redis.call('PERSIST', log)
  end
end

-- Returns the first id that is kept for members: all of them have acked those below, except the newest `keep`.
local function first_kept(members, stored, last, keep)
  if last - stored < keep then
    return stored
  end
  local lowest = redis.call('ZRANGE', members, 0, 0, 'WITHSCORES')
  -- A member who is suspended keeps what they have not read: otherwise its removal would show the other one that they are blocked.
  return math.max(stored, math.min(math.floor(lowest[2] or 0), last - keep) + 1)
end

-- Removes the entries that are not kept for members.
-- rare
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
