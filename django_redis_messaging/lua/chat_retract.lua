-- Leaves a tombstone where a message was: no body, no data, but no hole either.
--
-- uses _clock.lua
-- uses _log.lua
-- uses _members.lua
--
-- KEYS  1 newest
-- KEYS  2 roster
-- KEYS  3 log
-- KEYS  4 info
-- ARGV  1 user: the author, or an owner of the chat
-- ARGV  2 user as JSON
-- ARGV  3 id
-- Returns {epoch, entry}, {} where there is no such message (any more), or 'no chat', 'no member',
--   'no author'
local last, _, epoch = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local join_id, role = standing_of(KEYS[2], ARGV[1])
if not join_id then
  return 'no member'
end
local id, first = tonumber(ARGV[3]), first_of(KEYS[3], last)
if id < first or id > last or id <= join_id then
  return {}
end
local entry = redis.call('LINDEX', KEYS[3], id - first)
local ms, count, edited, author_size, __, start =
  string.match(entry, '^%[(%d+),(%d+),(%-?%d+),(%d+),(%d+),()')
local author = string.sub(entry, start, start + author_size - 1)
if author ~= ARGV[2] and role ~= 'owner' then
  return 'no author'
end
if tonumber(edited) >= 0 then
  entry = string.format('[%s,%s,%d,%s,2,', ms, count, -clock(), author_size) .. author .. ',""]'
  -- Removes nothing; but what follows a first write that Redis never refuses is not refused either.
  redis.call('HDEL', KEYS[2], '')
  redis.call('HINCRBY', KEYS[4], 'edits', 1)
  redis.call('LSET', KEYS[3], id - first, entry)
end
return {epoch, entry}
