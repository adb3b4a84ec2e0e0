-- Reads a page of a mailbox, and notes that somebody did.
--
-- uses _clock.lua
-- uses _mailbox.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- KEYS  7 fetched
-- ARGV  1 direction: 'newer' or 'older'
-- ARGV  2 id after which it begins, or '' for the very beginning
-- ARGV  3 epoch of the cursor, or '' for a bare id
-- ARGV  4 ms of the cursor, or ''
-- ARGV  5 most mails; a page of them also ends before it has more than PAGE_BYTES
-- ARGV  6 which: 'all', 'unread' or 'read'
-- ARGV  7 most mails a mailbox holds
-- ARGV  8 greatest age of a mail: ms, 0 for any
-- Returns {epoch, id after which it began or of the newest, gap, has_more, reset, {id, …}, {entry, …},
--   {unread: 1 or 0, …}}

-- bytes of a page's entries together
local PAGE_BYTES = 256 * 1024
-- entries read at once, and ids looked at once where the first did not fill the page
local TOGETHER, SCANNED = 20, 500

local box, now, limit = mailbox_at(KEYS), clock(), tonumber(ARGV[5])
local last, _, epoch, acked = newest_mail(box)
local begin = tonumber(ARGV[2])
local reset = begin and not is_own(box, last, epoch, begin, ARGV[3], ARGV[4])
local first = first_mail(box, beyond(box, now, tonumber(ARGV[7]), tonumber(ARGV[8])))
local newer, which = ARGV[1] == 'newer', ARGV[6]
acked = acked or 0
if reset then
  begin = nil
elseif begin then
  begin = math.min(begin, (last or 0) + (newer and 0 or 1))
end
local lowest = which == 'unread' and math.max(first, acked + 1) or first
local found, states = {}, {}

-- Some more ids after `at`, in the direction of reading.
local function ids_after(at, count)
  if newer then
    local from = at and at >= lowest and '(' .. at or lowest
    return redis.call('ZRANGEBYSCORE', box.order, from, '+inf', 'LIMIT', 0, count)
  end
  return redis.call('ZREVRANGEBYSCORE', box.order, at and '(' .. at or '+inf', lowest, 'LIMIT', 0, count)
end

local function add(id, unread)
  if #found <= limit and (which == 'all' or (which == 'unread') == unread) then
    found[#found + 1] = id
    states[#states + 1] = unread and 1 or 0
  end
end

local at, count = begin, limit + 1
repeat
  local ids = ids_after(at, count)
  if #ids > 0 then
    local marked = redis.call('ZMSCORE', box.marked, unpack(ids))
    for place, id in ipairs(ids) do
      add(id, tonumber(id) > acked and not marked[place])
    end
    at = tonumber(ids[#ids])
  end
  local complete = #ids < count
  count = SCANNED
until complete or #found > limit

-- The entries of those found that fit into a page: one at least.
local entries, size = {}, 0
local function add_entries(from)
  local ids = {unpack(found, from, math.min(from + TOGETHER - 1, #found))}
  for _, entry in ipairs(redis.call('HMGET', box.mail, unpack(ids))) do
    size = size + #entry
    if #entries == limit or (size > PAGE_BYTES and #entries > 0) then
      return false
    end
    entries[#entries + 1] = entry
  end
  return true
end

for from = 1, #found, TOGETHER do
  if not add_entries(from) then
    break
  end
end
local more = #entries < #found
for place = #found, #entries + 1, -1 do
  found[place], states[place] = nil, nil
end
local gap = 0
if last and (newer or not more) then
  gap = gap_after(box, newer and begin or acked, first)
end
-- Removes nothing; but what follows a first write that Redis never refuses is not refused either.
redis.call('HDEL', box.mail, '')
redis.call('SET', KEYS[7], now)
return {
  epoch or '0', math.min(begin or (newer and 0 or math.huge), last or 0), gap, more and 1 or 0, reset and 1 or 0,
  found, entries, states
}
