-- Marks some mails as read.
--
-- uses _clock.lua
-- uses _types.lua
-- uses _mailbox.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- ARGV  1 most mails a mailbox holds
-- ARGV  2 greatest age of a mail: ms, 0 for any
-- ARGV  3… ids
-- Returns how many were unread
local box, unread = mailbox_at(KEYS), 0
local first = first_mail(box, beyond(box, clock(), tonumber(ARGV[1]), tonumber(ARGV[2])))
local _, __, ___, acked = newest_mail(box)
check_types('ZCARD', box.marked, box.groups)
for at = 3, #ARGV do
  local id = ARGV[at]
  if tonumber(id) >= first and tonumber(id) > (acked or 0) and redis.call('ZSCORE', box.order, id) then
    redis.call('ZREMRANGEBYSCORE', box.groups, id, id)
    unread = unread + redis.call('ZADD', box.marked, id, id)
  end
end
return unread
