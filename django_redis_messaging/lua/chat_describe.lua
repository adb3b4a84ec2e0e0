-- Describes a chat.
--
-- reads only
-- uses _log.lua
--
-- KEYS  1 newest
-- KEYS  2 info
-- KEYS  3 members
-- KEYS  4 log
-- Returns {title, open, created (ms), edits, active (ms), last, first, keep, number of members}, or 'no chat'
local newest, info, members, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local last, active, _, keep = read_newest(newest)
if not last then
  return 'no chat'
end
local title, open, created, edits = unpack(redis.call('HMGET', info, 'title', 'open', 'created', 'edits'))
return {
  title, open, created, edits,
  active, last, first_id(log, last), keep,
  redis.call('ZCARD', members),
}
