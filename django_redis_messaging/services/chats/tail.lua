-- Reads the newest messages of a chat, for an operator, who need not be a member.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
--
-- KEYS  1-4 chat (_chat.lua)
-- ARGV  1 maximum number of messages
-- ARGV  2 maximum number of bytes; at least one message is returned
-- Returns {epoch, id of the first one, entry, …}, or 'no chat'
local keys = chat_at(KEYS)
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local last = chat.last
local stored = first_stored(keys.log, last)
local entries = read_entries_before(keys.log, stored, math.max(stored, last - limit + 1), last, max_bytes)
return {chat.epoch, last - #entries + 1, unpack(entries)}
