-- Describes a mailbox.
--
-- reads only
-- uses _mailbox.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- KEYS  7 fetched
-- ARGV  1 maximum number of mails in a mailbox
-- ARGV  2 maximum age of a mail: ms, 0 for none
-- Returns {unread, acked, fetched (ms) or '', number of mails, id of the newest mail ever sent}
local box, fetched = mailbox_at(KEYS), KEYS[7]
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2])}

local excess, length = count_excess(box, milliseconds(), limits)
local last, _, _, acked = read_newest(box)
acked = acked or 0
local from = math.max(excess > 0 and first_id(box, excess) or 0, acked + 1)
return {
  redis.call('ZCOUNT', box.order, from, '+inf') - redis.call('ZCOUNT', box.marked, from, '+inf'),
  acked,
  redis.call('GET', fetched) or '',
  length - excess,
  last or 0,
}
