-- Describes what a chat stores, and which members it stores it for.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 rank of the first member to list: 0 is the one who has read least
-- ARGV  2 maximum number of members to list
-- Returns {title, open, created (ms), active (ms), id of the newest message, id of the first stored one, keep, stored bytes,
--   number of members, {member, …}}; a member is {name, position, ms of joining, role, unread, ms until which the chat is
--   muted, messages and bytes that are stored only until the member has read them, 1 if the member hides from others what
--   they have read}. Or 'no chat'
local keys = chat_at(KEYS)
local rank, limit = tonumber(ARGV[1]), tonumber(ARGV[2])

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local last = chat.last
local stored = first_stored(keys.log, last)

-- The bytes of all messages before this one, which is stored or the next one.
local function bytes_before(id)
  local entry = id <= last and redis.call('LINDEX', keys.log, id - stored)
  return entry and read_extent(entry) or chat.total
end

-- Returns how many messages above this position are stored although they exceed what is kept for scroll-back, and their
-- bytes.
local to = last - chat.keep
local limit_of_bytes = to >= stored and bytes_before(to + 1) or 0
local function kept_above(position)
  local from = math.max(position + 1, stored)
  if from > to then
    return 0, 0
  end
  return to - from + 1, limit_of_bytes - bytes_before(from)
end

local function describe(name, position)
  local line = redis.call('HGET', keys.roster, name)
  local _, role, _, joined_at = parse_line(line or '')
  local unread = count_unread(keys.own, stored, last, position, name)
  local messages, bytes = kept_above(position)
  local muted = redis.call('HGET', keys.mutes, name)
  local hides = redis.call('SISMEMBER', keys.hidden, name)
  return {name, position, joined_at or 0, role or 'member', unread, muted or 0, messages, bytes, hides}
end

local members, found = {}, redis.call('ZRANGE', keys.members, rank, rank + limit - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  members[#members + 1] = describe(found[at], math.floor(found[at + 1]))
end
local title, open, created = unpack(redis.call('HMGET', keys.info, 'title', 'open', 'created'))
return {
  title or '', open or '0', created or chat.ms, chat.ms, last, stored, chat.keep,
  stored <= last and chat.total - bytes_before(stored) or 0,
  redis.call('ZCARD', keys.members), members,
}
