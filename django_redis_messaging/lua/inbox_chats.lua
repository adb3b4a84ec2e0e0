-- Describes any number of chats to a member.
--
-- reads only
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses _time.lua
--
-- KEYS  1… newest, members, counts, log, roster, mutes, info, seniority; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 maximum number of entries in a chat
-- ARGV  4 maximum age of an entry: ms, 0 for none
-- Returns a list with an item for each chat: -1 if the user is not a member (any more), or {epoch, title, unread,
--   active (ms), number of members, muted, id of the last entry, last entry or '', first few members}
local user, author = ARGV[1], ARGV[2]
local limits = {length = tonumber(ARGV[3]), age = tonumber(ARGV[4])}
local now = milliseconds()

local function describe(newest, members, counts, log, roster, mutes, info, seniority)
  local last, active, epoch = read_newest(newest)
  local position = redis.call('ZSCORE', members, user)
  if not last or not position then
    return -1
  end
  local first = apply_limits(log, first_id(log, last), last, now, limits)
  -- Members must not see entries sent before they joined.
  local entry = last > read_membership(roster, user) and redis.call('LINDEX', log, -1) or ''
  local muted = tonumber(redis.call('HGET', mutes, user) or 0) > now
  return {
    epoch,
    redis.call('HGET', info, 'title'),
    count_unread(counts, log, first, last, tonumber(position), user, author),
    active,
    redis.call('ZCARD', members),
    muted and 1 or 0,
    last,
    entry,
    redis.call('ZRANGE', seniority, 0, 3),
  }
end

local items = {}
for at = 1, #KEYS, 8 do
  items[#items + 1] = describe(unpack(KEYS, at, at + 7))
end
return items
