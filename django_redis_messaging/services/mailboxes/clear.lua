-- Removes all mails and acks them. Earlier removals by a limit no longer count as a gap.
--
-- uses _mailbox.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-8 mailbox (_mailbox.lua)
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 maximum number of mails in a mailbox
-- ARGV  4 maximum age of a mail: ms, 0 for none
-- Returns how many mails were removed; for a repeat, the first answer
local box = mailbox_at(KEYS)
local request, window = ARGV[1], tonumber(ARGV[2])
local limits = {length = tonumber(ARGV[3]), age = tonumber(ARGV[4])}

local now = milliseconds()
local last, ms, epoch = read_newest(box)
local recorded = find_answer(request, box.requests, window, now)
if recorded or not last then
  return tonumber(recorded or 0)
end
local excess, length = count_excess(box, now, limits)
check_types('ZCARD', box.marked, box.groups, box.lost)
check_types('HLEN', box.mail)
redis.call('UNLINK', box.ids, box.mail, box.marked, box.groups, box.lost)
redis.call('SET', box.newest, string.format('%.0f-%.0f-%s-%.0f', last, ms, epoch, last))
record_answer(request, length - excess, box.requests, window, now)
publish_hint('b', box.newest)
return length - excess
