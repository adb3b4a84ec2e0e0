-- Describes a chat to any number of its members, as chats/inbox_chats describes any number of chats to one.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1-2 limits of the log without bytes (_chat.lua)
-- ARGV  3… users
-- Returns {epoch, title, active (ms), number of members, id of the last entry, an excerpt of it or '', first few members,
--   {reader, …}}; a reader is {unread, muted, whether the last entry is visible}, or 0 if the user is not a member (any
--   more). Or 'no chat'.
local keys = chat_at(KEYS)
local limits = limits_of(ARGV[1], ARGV[2])
local EXCERPT, FIRST_USER = 512, 3

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local now, last = milliseconds(), chat.last
local first = apply_limits(keys.log, first_stored(keys.log, last), chat, now, limits)
local readers = {}
for at = FIRST_USER, #ARGV do
  local user, reader = ARGV[at], 0
  local position, join_id = read_position(keys.members, user), read_membership(keys.roster, user)
  if position and join_id then
    local muted = tonumber(redis.call('HGET', keys.mutes, user) or 0) > now
    local unread = count_unread(keys.own, first, last, position, user)
    reader = {unread, muted and 1 or 0, last > join_id and 1 or 0}
  end
  readers[#readers + 1] = reader
end
return {
  chat.epoch,
  redis.call('HGET', keys.info, 'title') or '',
  chat.ms,
  redis.call('ZCARD', keys.members),
  last,
  first <= last and excerpt(redis.call('LINDEX', keys.log, -1), EXCERPT) or '',
  redis.call('ZRANGE', keys.standing, 0, 3),
  readers,
}
