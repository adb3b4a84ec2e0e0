-- A user's index of chats: HASH chat id → "token, written at (ms), seen", space-separated. The token is that of
-- the membership; "?" plus the token of a joining in progress; "?" alone if several are in progress. `seen` is the
-- value of the chat's newest when the user had acked all of it, or 0.

-- Returns token, written at and seen; nil if the chat is not in the index.
local function read_index_entry(index, chat)
  local entry = redis.call('HGET', index, chat)
  if not entry then
    return nil
  end
  return string.match(entry, '^(%S+) (%d+) (%S+)$')
end

local function write_index_entry(index, chat, token, written, seen)
  redis.call('HSET', index, chat, token .. ' ' .. written .. ' ' .. seen)
end
