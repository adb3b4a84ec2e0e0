-- Marks mails as read.
--
-- uses _live.lua
-- uses _mailbox.lua
-- uses _time.lua
-- uses _types.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- ARGV  1 maximum number of mails in a mailbox
-- ARGV  2 maximum age of a mail: ms, 0 for none
-- ARGV  3… ids
-- Returns how many of them were unread
local box = mailbox_at(KEYS)
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2])}

local first = first_id(box, count_excess(box, milliseconds(), limits))
local _, __, ___, acked = read_newest(box)
check_types('ZCARD', box.marked, box.groups)
local unread = 0
for at = 3, #ARGV do
  local id = ARGV[at]
  if tonumber(id) >= first and tonumber(id) > (acked or 0) and redis.call('ZSCORE', box.order, id) then
    redis.call('ZREMRANGEBYSCORE', box.groups, id, id)
    unread = unread + redis.call('ZADD', box.marked, id, id)
  end
end
if unread > 0 then
  publish_hint('b', box.newest)
end
return unread
