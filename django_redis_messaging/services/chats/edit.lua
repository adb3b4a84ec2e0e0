-- Replaces the body of a message, or the whole message with a tombstone: body and data are removed, the id stays.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 user: the author; or, for a tombstone, an owner of the chat
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 new body as JSON; or '' for a tombstone
-- ARGV  5-7 limits of the log (_chat.lua)
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local keys = chat_at(KEYS)
local user, author, id, body = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limits, deletes = limits_of(ARGV[5], ARGV[6], ARGV[7]), body == ''

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local join_id, role = read_membership(keys.roster, user)
if not join_id then
  return 'no member'
end
local now = milliseconds()
local first, stored = apply_retention(chat, keys.members, keys.log, now, limits)
-- Owners moderate the whole chat, also messages from before their own membership.
local moderates = deletes and role == 'owner'
local lowest = moderates and first or math.max(first, join_id + 1)
local entry = read_entry(keys.log, stored, lowest, chat.last, id)
if not entry then
  return {}
end
local parsed = parse_entry(entry)
if parsed.author ~= author and not moderates then
  return 'no author'
end
if parsed.edited < 0 then -- it is a tombstone already
  return deletes and {chat.epoch, entry} or {}
end
local growth
if deletes then
  entry, growth = format_entry(parsed, -now, '""', '')
  allow_writes_when_full(keys.roster)
else
  entry, growth = format_entry(parsed, now, body, parsed.optional)
end
-- The record comes first: it fails before anything has changed if its keys have another type.
record_edit(keys.info, keys.edits, id)
redis.call('LSET', keys.log, id - stored, entry)
publish_hint('m', keys.newest)
if growth > 0 then
  local total = chat.total + growth
  redis.call('SET', keys.newest, format_newest(chat.last, chat.stamp, chat.epoch, chat.keep, total, chat.expires))
  chat.total = total
  apply_limits(keys.log, stored, chat, now, limits)
end
return {chat.epoch, entry}
