-- Reads a page of what a member may see.
--
-- reads only
-- uses _clock.lua
-- uses _log.lua
-- uses _positions.lua
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 log
-- ARGV  1 user
-- ARGV  2 which: 'newest', 'after' or 'before'
-- ARGV  3 id
-- ARGV  4 epoch of the cursor, or '' for a bare id
-- ARGV  5 ms of the cursor, or ''
-- ARGV  6 most entries
-- ARGV  7 most entries a chat holds
-- ARGV  8 greatest age of an entry: ms, 0 for any
-- Returns {epoch, id of the first entry, gap, has_more, reset, entry, …}, or 'no chat', 'no member'
local last, _, epoch = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local join_id = standing_of(KEYS[3], ARGV[1])
if not join_id then
  return 'no member'
end
local which, id, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[6])
local first = limited(KEYS[4], first_of(KEYS[4], last), last, clock(), tonumber(ARGV[7]), tonumber(ARGV[8]))
local reset = not is_ours(KEYS[4], first, last, epoch, id, ARGV[4], ARGV[5])
if reset then
  which, id = 'after', tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]))
end

local oldest = math.max(first, join_id + 1)
local from, to, gap, more
if which == 'after' then
  id = math.max(math.min(id, last), join_id)
  from = math.max(id + 1, first)
  to = math.min(from + limit - 1, last)
  gap = from - id - 1
  more = to < last
else
  to = which == 'before' and math.min(id - 1, last) or last
  from = math.max(to - limit + 1, oldest)
  more = from > oldest
  gap = more and 0 or math.max(math.min(oldest - 1, to) - join_id, 0)
end
local page = {epoch, from, gap, more and 1 or 0, reset and 1 or 0}
if from <= to then
  for _, entry in ipairs(redis.call('LRANGE', KEYS[4], from - first, to - first)) do
    page[#page + 1] = entry
  end
end
return page
