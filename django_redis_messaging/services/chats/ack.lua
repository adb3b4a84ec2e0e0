-- Moves a member's position forward, never back.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _positions.lua
-- uses common/_hints.lua
--
-- It has an order of keys of its own: with all keys of a chat in a table, as in other scripts, it would take 8 % longer.
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 own
-- KEYS  4 log
-- KEYS  5 info
-- KEYS  6 hidden
-- ARGV  1 user
-- ARGV  2 id of the cursor, or a bare id
-- ARGV  3 epoch of the cursor, or '' for a bare id
-- ARGV  4 stamp of the cursor (ms-nonce), or ''
-- ARGV  5 random number, see count_move in _positions.lua
-- Returns the position, or 'no chat', 'no member'
local newest, members, own, log, info, hidden = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local user, step = ARGV[1], ARGV[5]
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
count_move(info, hidden, user, step)
publish_hint('a', newest, user)
trim_acked(members, log, stored, chat.last, chat.keep)
return id
