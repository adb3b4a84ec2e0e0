-- Removes all mails and acks them. Earlier removals by a limit no longer count as a gap.
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
-- Returns how many mails were removed
local box = mailbox_at(KEYS)
local limits = {length = tonumber(ARGV[1]), age = tonumber(ARGV[2])}

local last, ms, epoch = read_newest(box)
if not last then
  return 0
end
local excess, length = count_excess(box, milliseconds(), limits)
check_types('ZCARD', box.marked, box.groups, box.lost)
check_types('HLEN', box.mail)
redis.call('UNLINK', box.order, box.mail, box.marked, box.groups, box.lost)
redis.call('SET', box.newest, string.format('%.0f-%.0f-%s-%.0f', last, ms, epoch, last))
publish_hint('b', box.newest)
return length - excess
