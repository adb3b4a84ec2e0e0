-- Describes a mailbox.
--
-- reads only
-- uses _mailbox.lua
-- uses common/_time.lua
--
-- KEYS  1-9 mailbox (_mailbox.lua)
-- ARGV  1 maximum number of mails in a mailbox
-- ARGV  2 maximum age of a mail: ms, 0 for none
-- Returns {unread, acked, fetched (ms) or '', number of mails, id of the newest mail ever sent}
local box = mailbox_at(KEYS)
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2])}

local excess, length = count_excess(box, milliseconds(), limits)
local last, _, _, acked = read_newest(box)
acked = acked or 0
local from = math.max(excess > 0 and first_id(box, excess) or 0, acked + 1)
return {
  length - rank_of(box, from) - redis.call('ZCOUNT', box.marked, from, '+inf'),
  acked,
  redis.call('GET', box.fetched) or '',
  length - excess,
  last or 0,
}
