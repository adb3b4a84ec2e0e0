-- Describes any number of chats to a member.
--
-- reads only
-- uses _clock.lua
-- uses _log.lua
-- uses _positions.lua
-- uses _members.lua
--
-- KEYS  1… newest, members, counts, log, roster, mutes, info, standing; of each chat
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 most entries a chat holds
-- ARGV  4 greatest age of an entry: ms, 0 for any
-- Returns a list with an item for each chat: -1 not a member (any more), or {epoch, title, unread,
--   active (ms), number of members, muted, id of the last entry, last entry or '', some members}
local max_length, max_age, now = tonumber(ARGV[3]), tonumber(ARGV[4]), clock()

local function describe(newest, members, counts, log, roster, mutes, info, standing)
  local last, active, epoch = newest_of(newest)
  local position = redis.call('ZSCORE', members, ARGV[1])
  if not last or not position then
    return -1
  end
  local first = limited(log, first_of(log, last), last, now, max_length, max_age)
  -- What was sent before the user joined is not for the user's eyes.
  local entry = last > standing_of(roster, ARGV[1]) and redis.call('LINDEX', log, -1) or ''
  local muted = tonumber(redis.call('HGET', mutes, ARGV[1]) or 0) > now
  return {
    epoch, redis.call('HGET', info, 'title'), unread(counts, log, first, last, tonumber(position), ARGV[1], ARGV[2]),
    active, redis.call('ZCARD', members), muted and 1 or 0, last, entry,
    redis.call('ZRANGE', standing, 0, 3)
  }
end

local items = {}
for at = 1, #KEYS, 8 do
  items[#items + 1] = describe(unpack(KEYS, at, at + 7))
end
return items
