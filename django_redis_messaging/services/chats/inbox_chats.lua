-- Describes any number of chats to a member.
--
-- reads only
-- uses _entry.lua
-- uses _isolation.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1… newest, members, own, log, roster, mutes, info, seniority; of each chat
-- ARGV  1 user
-- ARGV  2 maximum number of entries in a chat
-- ARGV  3 maximum age of an entry: ms, 0 for none
-- Returns a list with an item for each chat: -1 if the user is not a member (any more), -2 if the membership is
--   suspended, {error} if the chat is broken, or {epoch, title, unread, active (ms), number of members, muted, id of the
--   last entry, an excerpt of it or '', first few members}
local user = ARGV[1]
-- The limit of bytes is applied when entries are written or read: it would load an entry of each chat.
local limits = {length = tonumber(ARGV[2]), age = tonumber(ARGV[3]), bytes = math.huge}
-- bytes of JSON of the body in an excerpt
local EXCERPT = 512
local now = milliseconds()

local function describe(newest, members, own, log, roster, mutes, info, seniority)
  local chat = read_chat(newest)
  local position, suspended_score = read_position(members, user)
  if not chat or not position then
    return suspended_score and -2 or -1
  end
  local last = chat.last
  local first = apply_limits(log, first_stored(log, last), chat, now, limits)
  -- Members must not see entries sent before they joined.
  local is_visible = first <= last and last > read_membership(roster, user)
  local entry = is_visible and excerpt(redis.call('LINDEX', log, -1), EXCERPT) or ''
  local muted = tonumber(redis.call('HGET', mutes, user) or 0) > now
  return {
    chat.epoch,
    redis.call('HGET', info, 'title') or '',
    count_unread(own, first, last, position, user),
    chat.ms,
    redis.call('ZCARD', members),
    muted and 1 or 0,
    last,
    entry,
    redis.call('ZRANGE', seniority, 0, 3),
  }
end

local items = {}
for at = 1, #KEYS, 8 do
  items[#items + 1] = isolated(describe, unpack(KEYS, at, at + 7))
end
return items
