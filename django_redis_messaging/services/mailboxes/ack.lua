-- Moves the position of a mailbox forward, never back: every mail up to it is read.
--
-- uses _mailbox.lua
-- uses common/_hints.lua
-- uses common/_writes.lua
--
-- KEYS  1-6 mailbox (_mailbox.lua)
-- ARGV  1 id of the cursor, or a bare id
-- ARGV  2 epoch of the cursor, or '' for a bare id
-- ARGV  3 ms of the cursor, or ''
-- Returns the position
local box = mailbox_at(KEYS)
local cursor = {id = tonumber(ARGV[1]), epoch = ARGV[2], ms = ARGV[3]}

local last, ms, epoch, acked = read_newest(box)
if not is_cursor_valid(box, last, epoch, cursor) then
  return acked or 0
end
local id = math.min(cursor.id, last or 0)
if id <= (acked or 0) then
  return acked or 0
end
check_types('ZCARD', box.marked, box.groups)
redis.call('ZREMRANGEBYSCORE', box.marked, '-inf', id)
redis.call('ZREMRANGEBYSCORE', box.groups, '-inf', id)
redis.call('SET', box.newest, string.format('%.0f-%.0f-%s-%.0f', last, ms, epoch, id))
publish_hint('b', box.newest)
return id
