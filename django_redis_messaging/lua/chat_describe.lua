-- Describes a chat.
--
-- reads only
--
-- KEYS  1 info
-- KEYS  2 members
-- Returns {title, open, keep_last, created (ms), active (ms), last, first, edits, members}, or 'no chat'
local info = redis.call('HMGET', KEYS[1], 'title', 'open', 'keep', 'created', 'active', 'last', 'first', 'edits')
if not info[1] then
  return 'no chat'
end
info[9] = redis.call('ZCARD', KEYS[2])
return info
