-- Replaces the body of a member's own message.
--
-- uses _entry.lua
-- uses _log.lua
-- uses _members.lua
-- uses _time.lua
--
-- KEYS  1 newest
-- KEYS  2 roster
-- KEYS  3 log
-- KEYS  4 info
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 new body as JSON
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local newest, roster, log, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local user, author, id, body = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local last, _, epoch = read_newest(newest)
if not last then
  return 'no chat'
end
local join_id = read_membership(roster, user)
if not join_id then
  return 'no member'
end
local first = first_id(log, last)
local entry = read_entry(log, first, last, id, join_id)
if not entry then
  return {}
end
local parsed = parse_entry(entry)
if parsed.author ~= author then
  return 'no author'
end
if parsed.edited < 0 then
  return {}
end
entry = format_entry(parsed, milliseconds(), body, parsed.after_body)
-- HINCRBY comes first: it fails before anything has changed if info has another type.
redis.call('HINCRBY', info, 'edits', 1)
redis.call('LSET', log, id - first, entry)
return {epoch, entry}
