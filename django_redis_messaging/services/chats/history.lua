-- Reads a page of the messages that a member may see.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1-5 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 direction: 'newest', 'after' or 'before'
-- ARGV  3 id of the cursor, or a bare id
-- ARGV  4 epoch of the cursor, or '' for a bare id
-- ARGV  5 stamp of the cursor (ms-nonce), or ''
-- ARGV  6 maximum number of entries on the page
-- ARGV  7-9 limits of the log (_chat.lua)
-- Returns {epoch, id of the first entry, stamp of the entry before it if the page is empty, gap, has_more, reset,
--   role of the user, entry, …}, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user, direction, page_size = ARGV[1], ARGV[2], tonumber(ARGV[6])
local cursor = {id = tonumber(ARGV[3]), epoch = ARGV[4], stamp = ARGV[5]}
local limits = limits_of(ARGV[7], ARGV[8], ARGV[9])

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local join_id, role = read_membership(keys.roster, user)
if not join_id then
  return 'no member'
end
local last = chat.last
local first, stored = apply_retention(chat, keys.members, keys.log, milliseconds(), limits)
local reset = not is_cursor_valid(chat, keys.log, stored, cursor)
if reset then
  direction, cursor.id = 'after', read_position(keys.members, user) or join_id
end

-- ids from `from` on are on the page
local oldest = math.max(first, join_id + 1)
local entries, from, gap, more
if direction == 'after' then
  local after = math.max(math.min(cursor.id, last), join_id)
  from = math.max(after + 1, first)
  entries = read_entries(keys.log, stored, from, math.min(from + page_size - 1, last), MAX_BYTES)
  gap = from - after - 1
  more = from + #entries <= last
else
  local to = direction == 'before' and math.min(cursor.id - 1, last) or last
  from = math.max(to - page_size + 1, oldest)
  entries = read_entries_before(keys.log, stored, from, to, MAX_BYTES)
  from = #entries > 0 and to - #entries + 1 or from
  more = from > oldest
  gap = more and 0 or math.max(math.min(oldest - 1, to) - join_id, 0)
end

local stamp = #entries == 0 and stamp_of(chat, keys.log, stored, from - 1) or ''
local page = {chat.epoch, from, stamp, gap, more and 1 or 0, reset and 1 or 0, role}
for _, entry in ipairs(entries) do
  page[#page + 1] = entry
end
return page
