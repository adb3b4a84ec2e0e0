-- Replaces the body of a member's own message.
--
-- uses _edits.lua
-- uses _entry.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 log
-- KEYS  5 info
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 new body as JSON
-- ARGV  5 maximum number of entries in a chat
-- ARGV  6 maximum age of an entry: ms, 0 for none
-- ARGV  7 maximum size of a chat's entries: bytes
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local newest, members, roster, log, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local user, author, id, body = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limits = {length = tonumber(ARGV[5]), age = tonumber(ARGV[6]), bytes = tonumber(ARGV[7])}

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local join_id = read_membership(roster, user)
if not join_id then
  return 'no member'
end
local now = milliseconds()
local first, stored = apply_retention(chat, members, log, now, limits)
local entry = read_entry(log, stored, math.max(first, join_id + 1), chat.last, id)
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
local growth
entry, growth = format_entry(parsed, now, body, parsed.optional)
-- The record comes first: it fails before anything has changed if info has another type.
record_edit(info, id)
redis.call('LSET', log, id - stored, entry)
publish_hint('m', newest)
if growth > 0 then
  local total = chat.total + growth
  redis.call('SET', newest, format_newest(chat.last, chat.stamp, chat.epoch, chat.keep, total, chat.mark))
  chat.total = total
  apply_limits(log, stored, chat, now, limits)
end
return {chat.epoch, entry}
