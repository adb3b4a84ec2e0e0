-- Moves a contact to the front of a user's recent contacts and counts the use.
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- ARGV  1 contact
-- ARGV  2 token of this use: a repeat with the same token changes nothing
-- ARGV  3 maximum number of contacts
-- ARGV  4 order that decides which contacts stay: recent or frequency
-- Returns 1
local contacts, uses = KEYS[1], KEYS[2]
local contact, token, max_length, order = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- contacts removed by one call
local MAX_REMOVED = 500

-- Contacts by number of uses, then by latest use, the lowest first. The contact just used is left out: a new
-- contact could never stay among frequent ones otherwise.
local function list_least_used()
  local names = redis.call('ZRANGE', contacts, 0, -2)
  local rank, count = {}, {}
  for at, value in ipairs(redis.call('HMGET', uses, unpack(names))) do
    rank[names[at]] = at
    count[names[at]] = value and tonumber(string.match(value, '^%d+')) or 0
  end
  table.sort(names, function(a, b)
    return count[a] < count[b] or (count[a] == count[b] and rank[a] < rank[b])
  end)
  return names
end

local function trim()
  local excess = math.min(redis.call('ZCARD', contacts) - max_length, MAX_REMOVED)
  if excess > 0 then
    local names = order == 'recent' and redis.call('ZRANGE', contacts, 0, excess - 1) or list_least_used()
    redis.call('ZREM', contacts, unpack(names, 1, excess))
    redis.call('HDEL', uses, unpack(names, 1, excess))
  end
end

local latest = redis.call('ZRANGE', contacts, -1, -1, 'WITHSCORES')[2] or 0
local count, latest_token = string.match(redis.call('HGET', uses, contact) or '0 ', '^(%d+) (.*)$')
if latest_token == token then
  return 1
end
redis.call('HSET', uses, contact, (count + 1) .. ' ' .. token)
redis.call('ZADD', contacts, latest + 1, contact)
trim()
return 1
