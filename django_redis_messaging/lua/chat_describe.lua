-- Describes a chat.
--
-- reads only
-- uses _log.lua
--
-- KEYS  1 newest
-- KEYS  2 info
-- KEYS  3 members
-- KEYS  4 log
-- Returns {title, open, created (ms), edits, active (ms), last, first, keep_last, members}, or 'no chat'
local last, active, _, keep = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local told = redis.call('HMGET', KEYS[2], 'title', 'open', 'created', 'edits')
told[5] = active
told[6] = last
told[7] = first_of(KEYS[4], last)
told[8] = keep
told[9] = redis.call('ZCARD', KEYS[3])
return told
