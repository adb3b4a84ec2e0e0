-- Removes all mails, and acks them: what a limit removed before is not told any more.
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
-- Returns how many were there
local box = mailbox_at(KEYS)
local last, ms, epoch = newest_mail(box)
if not last then
  return 0
end
local over, length = beyond(box, clock(), tonumber(ARGV[1]), tonumber(ARGV[2]))
check_types('ZCARD', box.marked, box.groups, box.lost)
redis.call('HLEN', box.mail)
redis.call('UNLINK', box.order, box.mail, box.marked, box.groups, box.lost)
redis.call('SET', box.newest, string.format('%.0f-%.0f-%s-%.0f', last, ms, epoch, last))
return length - over
