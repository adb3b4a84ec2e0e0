-- Moves a member's position forward, never back.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _positions.lua
-- uses common/_hints.lua
--
-- The first keys of a chat, without chat_at: it would take 8 % longer.
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 own
-- KEYS  4 log
-- ARGV  1 user
-- ARGV  2 id of the cursor, or a bare id
-- ARGV  3 epoch of the cursor, or '' for a bare id
-- ARGV  4 stamp of the cursor (ms-nonce), or ''
-- Returns the position, or 'no chat', 'no member'
local newest, members, own, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local user = ARGV[1]
local cursor = {id = tonumber(ARGV[2]), epoch = ARGV[3], stamp = ARGV[4]}

local chat = read_chat(newest)
if not chat then
  return 'no chat'
end
local position = read_position(members, user)
if not position then
  return 'no member'
end
local stored = first_stored(log, chat.last)
local id = math.min(cursor.id, chat.last)
if id <= position or not is_cursor_valid(chat, log, stored, cursor) then
  return position
end
move_position(members, own, user, id)
publish_hint('a', newest, user)
trim_acked(members, log, stored, chat.last, chat.keep)
return id
