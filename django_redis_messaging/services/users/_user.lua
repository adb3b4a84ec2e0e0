-- A user: the keys of what others do with them, and the index of their chats.
--
-- uses common/_time.lua

-- The keys, in the order of UserKeys.joining in services/users/keys.py.
local function user_at(keys)
  return {chats = keys[1], joining = keys[2], blocks = keys[3], declined = keys[4], choices = keys[5]}
end

-- The index of a user's chats: HASH chat id → "number seen". The number is the join number of the membership, which only
-- grows (chats/_members.lua); it is 0 while the user becomes a member, and negative if that membership has ended since.
-- `seen` is what the user has seen of the chat (chats/_positions.lua).
--
-- A joining writes the index before the chat, and confirms the entry afterwards. The ZSET joining has those in progress:
-- "chat id token" → ms at which they began. While there is one, the entry stays: the user may be a member at any moment.

-- Returns number and seen; nil if the chat is not in the index.
local function read_index_entry(index, chat)
  local number, seen = string.match(redis.call('HGET', index, chat) or '', '^(%-?%d+) (%S+)$')
  return tonumber(number), seen
end

local function write_index_entry(index, chat, number, seen)
  redis.call('HSET', index, chat, digits(number) .. ' ' .. seen)
end

local function joining_entry(chat, token)
  return chat .. ' ' .. token
end

-- Whether a joining of this chat is in progress.
local function is_joining(joining, chat)
  for _, entry in ipairs(redis.call('ZRANGE', joining, 0, -1)) do
    if string.match(entry, '^(.*) ') == chat then
      return true
    end
  end
  return false
end

-- Removes the entry of a membership that has ended, or of a joining that was refused. Returns whether it has; the entry
-- stays for another joining in progress.
local function remove_index_entry(index, joining, chat, number, seen)
  if is_joining(joining, chat) then
    write_index_entry(index, chat, 0 - math.abs(number), seen)
    return false
  end
  return redis.call('HDEL', index, chat) == 1
end
