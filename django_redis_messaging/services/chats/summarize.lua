-- Describes a chat to any number of its members, as chats/inbox_chats describes any number of chats to one.
--
-- reads only
-- uses _entry.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 own
-- KEYS  4 log
-- KEYS  5 roster
-- KEYS  6 mutes
-- KEYS  7 info
-- KEYS  8 seniority
-- ARGV  1 maximum number of entries in a chat
-- ARGV  2 maximum age of an entry: ms, 0 for none
-- ARGV  3… users
-- Returns {epoch, title, active (ms), number of members, id of the last entry, an excerpt of it or '', first few members,
--   {reader, …}}; a reader is {unread, muted, whether the last entry is visible}, or 0 if the user is not a member (any
--   more). Or 'no chat'.
local newest, members, own, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local roster, mutes, info, seniority = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
-- As in chats/inbox_chats.
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2]), bytes = math.huge}
local EXCERPT, FIRST_USER = 512, 3

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local now, last = milliseconds(), chat.last
local first = apply_limits(log, first_stored(log, last), chat, now, limits)
local readers = {}
for at = FIRST_USER, #ARGV do
  local user, reader = ARGV[at], 0
  local position, join_id = read_position(members, user), read_membership(roster, user)
  if position and join_id then
    local muted = tonumber(redis.call('HGET', mutes, user) or 0) > now
    local unread = count_unread(own, first, last, position, user)
    reader = {unread, muted and 1 or 0, last > join_id and 1 or 0}
  end
  readers[#readers + 1] = reader
end
return {
  chat.epoch,
  redis.call('HGET', info, 'title') or '',
  chat.ms,
  redis.call('ZCARD', members),
  last,
  first <= last and excerpt(redis.call('LINDEX', log, -1), EXCERPT) or '',
  redis.call('ZRANGE', seniority, 0, 3),
  readers,
}
