-- Describes a mailbox.
--
-- reads only
-- uses _clock.lua
-- uses _mailbox.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- KEYS  7 fetched
-- ARGV  1 most mails a mailbox holds
-- ARGV  2 greatest age of a mail: ms, 0 for any
-- Returns {unread, acked, fetched (ms) or '', number of mails, id of the newest ever}
local box = mailbox_at(KEYS)
local over, length = beyond(box, clock(), tonumber(ARGV[1]), tonumber(ARGV[2]))
local last, _, __, acked = newest_mail(box)
acked = acked or 0
local from = math.max(over > 0 and first_mail(box, over) or 0, acked + 1)
return {
  redis.call('ZCOUNT', box.order, from, '+inf') - redis.call('ZCOUNT', box.marked, from, '+inf'),
  acked, redis.call('GET', KEYS[7]) or '', length - over, last or 0
}
