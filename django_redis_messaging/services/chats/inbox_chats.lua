-- Describes any number of chats to a member.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1… the first 8 keys (_chat.lua) of each chat
-- ARGV  1 user
-- ARGV  2-3 limits of the log without bytes (_chat.lua)
-- Returns a list with an item for each chat: -1 if the user is not a member (any more), -2 if the membership is
--   suspended, {error} if the chat is broken, or {epoch, title, unread, active (ms), number of members, muted, id of the
--   last entry, an excerpt of it or '', first few members}
local user = ARGV[1]
local limits = limits_of(ARGV[2], ARGV[3])
-- bytes of JSON of the body in an excerpt
local EXCERPT = 512
local now = milliseconds()

local function describe(keys)
  local chat = read_chat(keys.newest)
  local position, suspended_score = read_position(keys.members, user)
  if not chat or not position then
    return suspended_score and -2 or -1
  end
  local last = chat.last
  local first = apply_limits(keys.log, first_stored(keys.log, last), chat, now, limits)
  -- Members must not see entries sent before they joined.
  local is_visible = first <= last and last > read_membership(keys.roster, user)
  local entry = is_visible and excerpt(redis.call('LINDEX', keys.log, -1), EXCERPT) or ''
  local muted = tonumber(redis.call('HGET', keys.mutes, user) or 0) > now
  return {
    chat.epoch,
    redis.call('HGET', keys.info, 'title') or '',
    count_unread(keys.own, first, last, position, user),
    chat.ms,
    redis.call('ZCARD', keys.members),
    muted and 1 or 0,
    last,
    entry,
    redis.call('ZRANGE', keys.standing, 0, 3),
  }
end

local items = {}
for at = 1, #KEYS, 8 do
  items[#items + 1] = isolated(describe, chat_at({unpack(KEYS, at, at + 7)}))
end
return items
