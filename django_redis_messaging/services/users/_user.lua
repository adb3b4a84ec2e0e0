-- A user: the keys of what others do with them, and the index of their chats.

-- The keys, in the order of UserKeys.joining in services/users/keys.py.
local function user_at(keys)
  return {chats = keys[1], blocks = keys[2], declined = keys[3], choices = keys[4]}
end

-- The index of a user's chats: HASH chat id → "token, written at (ms), seen", space-separated. The token names the
-- membership, and the joining in progress after a "?":
--
--   A     the membership A
--   A?J   the membership A, which may have ended, and the joining J
--   ?J    the joining J
--   A?    the membership A, and several joinings; "?" alone: several joinings
--
-- J may end with "+": its index entry was written more than once, by repeats of one request. `seen` is explained in
-- chats/_positions.lua.

-- Returns token, written at and seen; nil if the chat is not in the index.
local function read_index_entry(index, chat)
  local entry = redis.call('HGET', index, chat)
  if not entry then
    return nil
  end
  return string.match(entry, '^(%S+) (%d+) (%S+)$')
end

-- Returns the membership, '' if there is none, and the joining; nil if there is none, '' if there are several.
local function split_index_token(token)
  local membership, joining = string.match(token, '^([^?]*)%?(.*)$')
  return membership or token, joining
end

local function write_index_entry(index, chat, token, written, seen)
  redis.call('HSET', index, chat, token .. ' ' .. written .. ' ' .. seen)
end
