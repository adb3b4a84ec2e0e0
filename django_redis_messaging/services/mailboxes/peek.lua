-- Reads the newest mails of a mailbox for an operator: unlike a fetch, it records nothing.
--
-- reads only
-- uses _mailbox.lua
-- uses common/_time.lua
--
-- KEYS  1-4 mailbox (_mailbox.lua)
-- ARGV  1 maximum number of mails
-- ARGV  2 maximum number of bytes; at least one mail is returned
-- ARGV  3 maximum number of mails in a mailbox
-- ARGV  4 maximum age of a mail: ms, 0 for none
-- Returns {epoch, {id, …}, {entry, …}, {unread: 1 or 0, …}}, the newest first
local box = mailbox_at(KEYS)
local limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])
local limits = {length = tonumber(ARGV[3]), age = tonumber(ARGV[4])}

local excess, length = count_excess(box, milliseconds(), limits)
local _, _, epoch, acked = read_newest(box)
local ids, entries, states, size = {}, {}, {}, 0
for rank = length - 1, math.max(excess, length - limit), -1 do
  local id = id_at(box, rank)
  local entry = redis.call('HGET', box.mail, id)
  size = size + #(entry or '')
  if entry and (size <= max_bytes or #ids == 0) then
    ids[#ids + 1], entries[#entries + 1] = id, entry
    states[#states + 1] = tonumber(id) > (acked or 0) and not redis.call('ZSCORE', box.marked, id) and 1 or 0
  end
end
return {epoch or '0', ids, entries, states}
