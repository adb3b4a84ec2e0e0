-- Moves a contact to the front of a user's recent contacts and counts the use.
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- ARGV  1 contact
-- ARGV  2 token of this use: the same one again changes nothing
-- ARGV  3 most contacts that are kept
-- ARGV  4 order in which they are kept: recent or frequency
-- Returns 1
local top = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or 0
local uses, token = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '0 ', '^(%d+) (.*)$')
if token == ARGV[2] then
  return 1
end
redis.call('HSET', KEYS[2], ARGV[1], (uses + 1) .. ' ' .. ARGV[2])
redis.call('ZADD', KEYS[1], top + 1, ARGV[1])

-- Those to lose, oldest first; never the one just used, or a newcomer could not get in among frequent ones.
local function least_used()
  local members = redis.call('ZRANGE', KEYS[1], 0, -2)
  local rank, count = {}, {}
  for at, value in ipairs(redis.call('HMGET', KEYS[2], unpack(members))) do
    rank[members[at]] = at
    count[members[at]] = value and tonumber(string.match(value, '^%d+')) or 0
  end
  table.sort(members, function(a, b)
    return count[a] < count[b] or (count[a] == count[b] and rank[a] < rank[b])
  end)
  return members
end

local excess = math.min(redis.call('ZCARD', KEYS[1]) - ARGV[3], 500)
if excess > 0 then
  local losers = ARGV[4] == 'recent' and redis.call('ZRANGE', KEYS[1], 0, excess - 1) or least_used()
  redis.call('ZREM', KEYS[1], unpack(losers, 1, excess))
  redis.call('HDEL', KEYS[2], unpack(losers, 1, excess))
end
return 1
