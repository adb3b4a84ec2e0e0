-- Removes one mail.
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
-- ARGV  1 id
-- ARGV  2 most mails a mailbox holds
-- ARGV  3 greatest age of a mail: ms, 0 for any
-- Returns 1, or 0 where there is no such mail, or a limit was faster
local box = mailbox_at(KEYS)
local first = first_mail(box, beyond(box, clock(), tonumber(ARGV[2]), tonumber(ARGV[3])))
if tonumber(ARGV[1]) < first or not redis.call('ZSCORE', box.order, ARGV[1]) then
  return 0
end
check_types('ZCARD', box.marked, box.groups)
redis.call('HDEL', box.mail, ARGV[1])
removed(box, ARGV[1], ARGV[1])
return 1
