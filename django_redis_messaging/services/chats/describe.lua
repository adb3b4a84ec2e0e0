-- Describes a chat.
--
-- reads only
-- uses _log.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 info
-- KEYS  3 members
-- KEYS  4 log
-- ARGV  1 maximum number of entries in a chat
-- ARGV  2 maximum age of an entry: ms, 0 for none
-- ARGV  3 maximum size of a chat's entries: bytes
-- Returns {title, open, created (ms), edits, active (ms), last, first, keep, number of members}, or 'no chat'
local newest, info, members, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2]), bytes = tonumber(ARGV[3])}

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local first = apply_retention(chat, members, log, milliseconds(), limits)
local title, open, created, edits = unpack(redis.call('HMGET', info, 'title', 'open', 'created', 'edits'))
return {
  title or '', open or '0', created or chat.ms, edits or 0,
  chat.ms, chat.last, first, chat.keep,
  redis.call('ZCARD', members),
}
