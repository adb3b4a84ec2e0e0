-- Reads a page of a mailbox and records the time of the fetch.
--
-- uses _mailbox.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-9 mailbox (_mailbox.lua)
-- ARGV  1 direction: 'newer' or 'older'
-- ARGV  2 id of the cursor after which the page begins, or '' to begin at the oldest or newest mail
-- ARGV  3 epoch of the cursor, or '' for a bare id
-- ARGV  4 ms of the cursor, or ''
-- ARGV  5 maximum number of mails; a page also ends before its entries exceed PAGE_BYTES
-- ARGV  6 filter: 'all', 'unread' or 'read'
-- ARGV  7 maximum number of mails in a mailbox
-- ARGV  8 maximum age of a mail: ms, 0 for none
-- Returns {epoch, id after which the page began or of the newest mail, gap, has_more, reset, {id, …}, {entry, …},
--   {unread: 1 or 0, …}}
local box = mailbox_at(KEYS)
local newer, filter, page_size = ARGV[1] == 'newer', ARGV[6], tonumber(ARGV[5])
local cursor = {id = tonumber(ARGV[2]), epoch = ARGV[3], ms = ARGV[4]}
local limits = {length = tonumber(ARGV[7]), age = tonumber(ARGV[8])}

-- bytes of a page's entries together; at least one entry is returned
local PAGE_BYTES = 256 * 1024
-- entries read by one command
local ENTRIES_PER_READ = 20
-- ids read by one command if the first one did not fill the page
local IDS_PER_READ = 500

local now = milliseconds()
local last, _, epoch, acked = read_newest(box)
last, acked = last or 0, acked or 0
local reset = cursor.id and not is_cursor_valid(box, last, epoch, cursor)
local after = not reset and cursor.id and math.min(cursor.id, last + (newer and 0 or 1)) or nil
local first = first_id(box, count_excess(box, now, limits))
local lowest = filter == 'unread' and math.max(first, acked + 1) or first

-- Up to `count` ids after `id` (nil: from the beginning) in the direction of reading.
local function ids_after(id, count)
  if newer then
    local start = rank_of(box, math.max(id and id + 1 or 0, lowest))
    return redis.call('LRANGE', box.ids, start, start + count - 1)
  end
  local stop, found = rank_of(box, id or math.huge), {}
  local start = math.max(rank_of(box, lowest), stop - count)
  local ids = start < stop and redis.call('LRANGE', box.ids, start, stop - 1) or {}
  for at = #ids, 1, -1 do
    found[#found + 1] = ids[at]
  end
  return found
end

-- Appends those of `ids` that pass the filter, until there is one more than the page holds.
local function append_matching(ids, found, states)
  local marked = redis.call('ZMSCORE', box.marked, unpack(ids))
  for at, id in ipairs(ids) do
    local unread = tonumber(id) > acked and not marked[at]
    if #found <= page_size and (filter == 'all' or (filter == 'unread') == unread) then
      found[#found + 1] = id
      states[#states + 1] = unread and 1 or 0
    end
  end
end

-- Returns the ids of the page and one more if there is one, and whether each is unread.
local function find_ids()
  local found, states = {}, {}
  local id, count = after, page_size + 1
  repeat
    local ids = ids_after(id, count)
    if #ids > 0 then
      append_matching(ids, found, states)
      id = tonumber(ids[#ids])
    end
    local complete = #ids < count
    count = IDS_PER_READ
  until complete or #found > page_size
  return found, states
end

-- Returns the entries of `ids` that fit on the page.
local function read_entries(ids)
  local entries, size = {}, 0
  for from = 1, #ids, ENTRIES_PER_READ do
    local to = math.min(from + ENTRIES_PER_READ - 1, #ids)
    for _, entry in ipairs(redis.call('HMGET', box.mail, unpack(ids, from, to))) do
      size = size + #entry
      if #entries == page_size or (size > PAGE_BYTES and #entries > 0) then
        return entries
      end
      entries[#entries + 1] = entry
    end
  end
  return entries
end

local ids, states = find_ids()
local entries = read_entries(ids)
local more = #entries < #ids
for at = #ids, #entries + 1, -1 do
  ids[at], states[at] = nil, nil
end
local gap = 0
if epoch and (newer or not more) then
  gap = count_gap(box, newer and after or acked, first)
end
allow_writes_when_full(box.mail)
redis.call('SET', box.fetched, now)
return {
  epoch or '0', math.min(after or (newer and 0 or math.huge), last), gap, more and 1 or 0, reset and 1 or 0,
  ids, entries, states,
}
