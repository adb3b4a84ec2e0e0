-- Removes one mail.
--
-- uses _mailbox.lua
-- uses common/_hints.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-6 mailbox (_mailbox.lua)
-- ARGV  1 id
-- ARGV  2 maximum number of mails in a mailbox
-- ARGV  3 maximum age of a mail: ms, 0 for none
-- Returns 1, or 0 if the mail does not exist or is beyond the limits
local box = mailbox_at(KEYS)
local id = ARGV[1]
local limits = {length = tonumber(ARGV[2]), age = tonumber(ARGV[3])}

local first = first_id(box, count_excess(box, milliseconds(), limits))
if tonumber(id) < first or redis.call('HEXISTS', box.mail, id) == 0 then
  return 0
end
check_types('ZCARD', box.marked, box.groups)
remove(box, id)
publish_hint('b', box.newest)
return 1
