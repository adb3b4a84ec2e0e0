-- Describes a chat.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses common/_time.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1-3 limits of the log (_chat.lua)
-- Returns {title, open, created (ms), edits, active (ms), last, first, keep, number of members}, or 'no chat'
local keys = chat_at(KEYS)
local limits = limits_of(ARGV[1], ARGV[2], ARGV[3])

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local first = apply_retention(chat, keys.members, keys.log, milliseconds(), limits)
local title, open, created, edits = unpack(redis.call('HMGET', keys.info, 'title', 'open', 'created', 'edits'))
return {
  title or '', open or '0', created or chat.ms, edits or 0,
  chat.ms, chat.last, first, chat.keep,
  redis.call('ZCARD', keys.members),
}
