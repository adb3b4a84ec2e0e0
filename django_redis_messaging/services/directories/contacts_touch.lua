-- Moves a contact to the front of a user's recent contacts and counts the use.
--
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- KEYS  3 touches, first hash
-- KEYS  4 touches, second hash
-- ARGV  1 contact
-- ARGV  2 token of this use: a repeat with the same token changes nothing
-- ARGV  3 window in which a repeat is recognized: ms
-- ARGV  4 maximum number of contacts
-- ARGV  5 order that decides which contacts stay: recent or frequency
-- Returns 1
local contacts, uses, touches = KEYS[1], KEYS[2], {KEYS[3], KEYS[4]}
local contact, token, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_length, order = tonumber(ARGV[4]), ARGV[5]

-- contacts removed by one call
local MAX_REMOVED = 500

-- Contacts by number of uses, then by latest use, the lowest first. The contact just used is left out: a new
-- contact could never stay among frequent ones otherwise.
local function list_least_used()
  local names = redis.call('ZRANGE', contacts, 0, -2)
  local rank, count = {}, {}
  for at, value in ipairs(redis.call('HMGET', uses, unpack(names))) do
    rank[names[at]] = at
    count[names[at]] = tonumber(value or 0)
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
check_types('HLEN', uses)
if record_answer_once(token, '1', touches, window, milliseconds()) then
  return 1
end
redis.call('HINCRBY', uses, contact, 1)
redis.call('ZADD', contacts, latest + 1, contact)
trim()
return 1
