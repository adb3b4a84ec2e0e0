-- Moves a member's position forward, never back.
--
-- uses _log.lua
-- uses _positions.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 id of the cursor, or a bare id
-- ARGV  4 epoch of the cursor, or '' for a bare id
-- ARGV  5 ms of the cursor, or ''
-- Returns the position, or 'no chat', 'no member'
local newest, members, counts, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local user, author = ARGV[1], ARGV[2]
local cursor = {id = tonumber(ARGV[3]), epoch = ARGV[4], ms = ARGV[5]}

local last, _, epoch, keep = read_newest(newest)
if not last then
  return 'no chat'
end
local position = redis.call('ZSCORE', members, user)
if not position then
  return 'no member'
end
position = tonumber(position)
local first = first_id(log, last)
if not is_cursor_valid(log, first, last, epoch, cursor) then
  return position
end
local id = math.min(cursor.id, last)
if id <= position then
  return position
end
move_position(members, counts, log, first, last, user, author, id)
trim_acked(members, log, first, last, keep)
return id
