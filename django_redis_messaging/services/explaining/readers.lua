-- Lists the members of a chat that have read least, with what is unread.
--
-- uses chats/_chat.lua
-- uses chats/_log.lua
-- uses chats/_positions.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-12 chat (chats/_chat.lua)
-- ARGV  1 maximum number of members
-- ARGV  2-4 limits of the log (chats/_chat.lua)
-- Returns {server time (ms), number of members, of the ones that are examined those who hide what they have read, then of
-- each other one with unread messages: name, position, unread, stored messages after the position, ms until which the
-- member has muted the chat or 0}; {} if there is no chat. Members who are suspended are left out.
local keys = chat_at(KEYS)
local count, limits = tonumber(ARGV[1]), limits_of(ARGV[2], ARGV[3], ARGV[4])
local now = milliseconds()
local chat = read_chat(keys.newest)
if not chat then
  return {}
end
local stored = first_stored(keys.log, chat.last)
local first = first_allowed(keys.log, stored, chat, now, limits)
local found = {now, redis.call('ZCARD', keys.members), 0}
for _, member in ipairs(redis.call('ZRANGE', keys.members, 0, count - 1)) do
  local position = read_position(keys.members, member)
  local unread = position and count_unread(keys.own, first, chat.last, position, member) or 0
  if unread > 0 and redis.call('SISMEMBER', keys.hidden, member) == 1 then
    found[3] = found[3] + 1
  elseif unread > 0 then
    local muted = tonumber(redis.call('HGET', keys.mutes, member) or 0)
    for _, value in ipairs({member, position, unread, chat.last - math.max(position, stored - 1), muted}) do
      found[#found + 1] = value
    end
  end
end
return found
