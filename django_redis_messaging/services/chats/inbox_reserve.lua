-- Writes a chat into a user's index before the user becomes a member. Nobody whom the user has blocked can make the
-- user a member, nor anybody in a direct chat that the user has declined. Nor can the user open a direct chat with a
-- person whom they have blocked.
--
-- uses common/_time.lua
-- uses users/_user.lua
--
-- KEYS  1-5 user (users/_user.lua)
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 maximum number of chats of a user
-- ARGV  4 who makes the user a member; if the user does so, the other member of a direct chat, or ''
-- ARGV  5 1 if the user makes themselves a member, otherwise 0
-- ARGV  6 how long a joining can take: ms
-- Returns the sum of 1, of 1 if the user hides what they have read, and of 2 if an earlier joining has not confirmed the
--   entry: then it may have made the user a member, and a refusal of this one must not remove the entry. Or, with nothing
--   written, 'full', 'blocked', 'opted out', or 0: refused, but the entry names a membership, so that the user is a member
--   already
local keys = user_at(KEYS)
local chat, token, max_chats, person, is_own = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5] == '1'
local grace = tonumber(ARGV[6])

-- Returns why nobody, or not this person, may make the user a member.
local function refuse_person()
  if person ~= '' and redis.call('ZSCORE', keys.blocks, person) then
    return 'blocked'
  end
  return not is_own and redis.call('ZSCORE', keys.declined, chat) and 'opted out' or nil
end

-- Only confirmed entries count, so that joinings that were refused or interrupted cannot shut a user out. Their
-- number is limited by the length of the index.
local function is_full()
  local length = redis.call('HLEN', keys.chats)
  if length < max_chats or length >= 2 * max_chats then
    return length >= max_chats
  end
  local confirmed = 0
  for _, entry in ipairs(redis.call('HVALS', keys.chats)) do
    if string.find(entry, '^[1-9]') then
      confirmed = confirmed + 1
    end
  end
  return confirmed >= max_chats
end

local number = read_index_entry(keys.chats, chat)
local refusal = refuse_person()
if refusal then
  return (number or 0) > 0 and not is_own and 0 or refusal
end
if not number and is_full() then
  return 'full'
end
local now = milliseconds()
redis.call('ZADD', keys.joining, now, joining_entry(chat, token))
redis.call('ZREMRANGEBYSCORE', keys.joining, '-inf', now - grace) -- those were interrupted
redis.call('PEXPIRE', keys.joining, grace)
if not number then
  write_index_entry(keys.chats, chat, 0, '0-0-0-0-0-0-0')
end
local hides = redis.call('HGET', keys.choices, 'receipts') == '0'
return 1 + (hides and 1 or 0) + (number and number <= 0 and 2 or 0)
