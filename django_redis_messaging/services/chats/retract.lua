-- Replaces a message with a tombstone: body and data are removed, the id stays.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1 user: the author, or an owner of the chat
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4-6 limits of the log (_chat.lua)
-- Returns {epoch, entry}, {} if the message does not exist (any more), or 'no chat', 'no member', 'no author'
local keys = chat_at(KEYS)
local user, author, id = ARGV[1], ARGV[2], tonumber(ARGV[3])
local limits = limits_of(ARGV[4], ARGV[5], ARGV[6])

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
local lowest = role == 'owner' and first or math.max(first, join_id + 1)
local entry = read_entry(keys.log, stored, lowest, chat.last, id)
if not entry then
  return {}
end
local parsed = parse_entry(entry)
if parsed.author ~= author and role ~= 'owner' then
  return 'no author'
end
if parsed.edited >= 0 then
  entry = format_entry(parsed, -now, '""', '')
  allow_writes_when_full(keys.roster)
  record_edit(keys.info, id)
  redis.call('LSET', keys.log, id - stored, entry)
  publish_hint('m', keys.newest)
end
return {chat.epoch, entry}
