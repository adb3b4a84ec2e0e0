-- Replaces a message with a tombstone: body and data are removed, the id stays.
--
-- uses _edits.lua
-- uses _entry.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_memory.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 log
-- KEYS  5 info
-- ARGV  1 user: the author, or an owner of the chat
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 maximum number of entries in a chat
-- ARGV  5 maximum age of an entry: ms, 0 for none
-- ARGV  6 maximum size of a chat's entries: bytes
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local newest, members, roster, log, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local user, author, id = ARGV[1], ARGV[2], tonumber(ARGV[3])
local limits = {length = tonumber(ARGV[4]), age = tonumber(ARGV[5]), bytes = tonumber(ARGV[6])}

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local join_id, role = read_membership(roster, user)
if not join_id then
  return 'no member'
end
local now = milliseconds()
local first, stored = apply_retention(chat, members, log, now, limits)
-- Owners moderate the whole chat, also messages from before their own membership.
local lowest = role == 'owner' and first or math.max(first, join_id + 1)
local entry = read_entry(log, stored, lowest, chat.last, id)
if not entry then
  return {}
end
local parsed = parse_entry(entry)
if parsed.author ~= author and role ~= 'owner' then
  return 'no author'
end
if parsed.edited >= 0 then
  entry = format_entry(parsed, -now, '""', '')
  allow_writes_when_full(roster)
  record_edit(info, id)
  redis.call('LSET', log, id - stored, entry)
  publish_hint('m', newest)
end
return {chat.epoch, entry}
