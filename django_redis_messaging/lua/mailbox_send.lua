-- Puts a mail into a mailbox, in place of its group's unread one.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _types.lua
-- uses _mailbox.lua
--
-- KEYS  1 newest
-- KEYS  2 order
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- KEYS  7 requests, first turn
-- KEYS  8 requests, second turn
-- ARGV  1 rest of the entry: sender, group, payload
-- ARGV  2 group, or ''
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5 most mails a mailbox holds
-- ARGV  6 greatest age of a mail: ms, 0 for any
-- Returns "id-ms-epoch-count"; of a repeat, what its first sending returned
local box, now = mailbox_at(KEYS), clock()
local max_length, max_age = tonumber(ARGV[5]), tonumber(ARGV[6])
local last, active, epoch, acked = newest_mail(box)
if not last then
  local time = redis.call('TIME')
  last, active, epoch, acked = 0, 0, string.format('%.0f', time[1] * 1000000 + time[2]), 0
end
local count, earlier = 1, ARGV[2] ~= '' and redis.call('ZSCORE', box.groups, ARGV[2])
-- Age costs a look at the oldest: in a burst one a second will do, for reads pass over what is too old.
local again = math.floor(active / 1000) == math.floor(now / 1000)
local over, length = beyond(box, now, max_length, (not again or earlier) and max_age or nil)
if earlier and tonumber(earlier) >= first_mail(box, over) then
  count = string.match(redis.call('HGET', box.mail, earlier), '^%[%d+,(%d+)') + 1
  length = length - 1
end
over = math.max(over, length + 1 - max_length)
redis.call('HEXISTS', box.mail, '')
if over > 0 or count > 1 then
  check_types('ZCARD', box.marked, box.groups, box.lost)
end
-- Every key has been read by now: one that holds another type has said so before the first write.

local id, ms = last + 1, string.format('%.0f', math.max(now, active))
local line = id .. '-' .. ms .. '-' .. epoch .. '-' .. count
local answered = remembered(ARGV[3], line, {KEYS[7], KEYS[8]}, tonumber(ARGV[4]), now, active)
if answered then
  return answered
end
if count > 1 then
  redis.call('HDEL', box.mail, earlier)
  removed(box, earlier, earlier)
end
redis.call('HSET', box.mail, id, '[' .. ms .. ',' .. count .. ',' .. ARGV[1])
redis.call('ZADD', box.order, id, id)
if ARGV[2] ~= '' then
  redis.call('ZADD', box.groups, id, ARGV[2])
end
redis.call('SET', box.newest, id .. '-' .. ms .. '-' .. epoch .. '-' .. acked)
if not again and max_age > 0 then
  redis.call('PEXPIREAT', box.mail, string.format('%.0f', ms + max_age + 1000))
elseif not again then
  redis.call('PERSIST', box.mail)
end
trimmed(box, over)
return line
