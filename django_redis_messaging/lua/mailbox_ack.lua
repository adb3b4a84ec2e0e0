-- Moves the position of a mailbox, never back: what is up to it is read.
--
-- uses _types.lua
-- uses _mailbox.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- ARGV  1 id
-- ARGV  2 epoch of the cursor, or '' for a bare id
-- ARGV  3 ms of the cursor, or ''
-- Returns the position
local box = mailbox_at(KEYS)
local last, ms, epoch, acked = newest_mail(box)
local id = tonumber(ARGV[1])
if not is_own(box, last, epoch, id, ARGV[2], ARGV[3]) then
  return acked or 0
end
id = math.min(id, last or 0)
if id <= (acked or 0) then
  return acked or 0
end
check_types('ZCARD', box.marked, box.groups)
redis.call('ZREMRANGEBYSCORE', box.marked, '-inf', id)
redis.call('ZREMRANGEBYSCORE', box.groups, '-inf', id)
redis.call('SET', box.newest, string.format('%.0f-%.0f-%s-%.0f', last, ms, epoch, id))
return id
