-- Replaces a message with a tombstone: body and data are removed, the id stays.
--
-- uses _entry.lua
-- uses _log.lua
-- uses _members.lua
-- uses _memory.lua
-- uses _time.lua
--
-- KEYS  1 newest
-- KEYS  2 roster
-- KEYS  3 log
-- KEYS  4 info
-- ARGV  1 user: the author, or an owner of the chat
-- ARGV  2 user as JSON
-- ARGV  3 id
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local newest, roster, log, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local user, author, id = ARGV[1], ARGV[2], tonumber(ARGV[3])

local last, _, epoch = read_newest(newest)
if not last then
  return 'no chat'
end
local join_id, role = read_membership(roster, user)
if not join_id then
  return 'no member'
end
local first = first_id(log, last)
local entry = read_entry(log, first, last, id, join_id)
if not entry then
  return {}
end
local parsed = parse_entry(entry)
if parsed.author ~= author and role ~= 'owner' then
  return 'no author'
end
if parsed.edited >= 0 then
  entry = format_entry(parsed, -milliseconds(), '""', ']')
  allow_writes_when_full(roster)
  redis.call('HINCRBY', info, 'edits', 1)
  redis.call('LSET', log, id - first, entry)
end
return {epoch, entry}
