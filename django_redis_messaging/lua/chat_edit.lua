-- Replaces the body of a member's own message.
--
-- uses _clock.lua
-- uses _log.lua
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 roster
-- KEYS  3 log
-- KEYS  4 info
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 new body as JSON
-- Returns {epoch, entry}, {} where there is no such message (any more), or 'no chat', 'no member',
--   'no author'
local last, _, epoch = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local join_id = standing_of(KEYS[2], ARGV[1])
if not join_id then
  return 'no member'
end
local id, first = tonumber(ARGV[3]), first_of(KEYS[3], last)
if id < first or id > last or id <= join_id then
  return {}
end
local entry = redis.call('LINDEX', KEYS[3], id - first)
local ms, count, edited, author_size, body_size, start =
  string.match(entry, '^%[(%d+),(%d+),(%-?%d+),(%d+),(%d+),()')
if string.sub(entry, start, start + author_size - 1) ~= ARGV[2] then
  return 'no author'
end
if tonumber(edited) < 0 then
  return {}
end
local rest = string.sub(entry, start + author_size + 1 + body_size)
entry = string.format('[%s,%s,%d,%s,%d,', ms, count, clock(), author_size, #ARGV[4])
  .. ARGV[2] .. ',' .. ARGV[4] .. rest
-- first, since it says so if that key holds another type
redis.call('HINCRBY', KEYS[4], 'edits', 1)
redis.call('LSET', KEYS[3], id - first, entry)
return {epoch, entry}
