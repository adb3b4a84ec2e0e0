-- Puts a mail into a mailbox. It replaces the unread mail of its group.
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
-- ARGV  3 content of the entry: sender, group, payload
-- ARGV  4 group, or ''
-- ARGV  5 maximum number of mails in a mailbox
-- ARGV  6 maximum age of a mail: ms, 0 for none
-- Returns "id-ms-epoch-count"; for a repeat, {the first answer, the entry if it is still stored}
local box = mailbox_at(KEYS)
local request, window, content, group = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limits = {length = tonumber(ARGV[5]), age = tonumber(ARGV[6])}

local now = milliseconds()
local last, active, epoch, acked = read_newest(box)
if not last then
  last, active, epoch, acked = 0, 0, string.format('%.0f', microseconds()), 0
end
local replaced = group ~= '' and redis.call('ZSCORE', box.groups, group)
-- Checking the age reads the oldest mail. In a burst, once per second suffices: reads ignore mails that are too old.
local same_second = math.floor(active / 1000) == math.floor(now / 1000)
local excess, length = count_excess(box, now, limits, same_second and not replaced)
local count = 1
if replaced and tonumber(replaced) >= first_id(box, excess) then
  count = string.match(redis.call('HGET', box.mail, replaced), '^%[%d+,(%d+)') + 1
  length = length - 1
end
excess = math.max(excess, length + 1 - limits.length)
redis.call('HLEN', box.mail)
if excess > 0 or count > 1 then
  check_types('ZCARD', box.marked, box.groups, box.lost)
end
-- Every key has been read by now: a key of another type has raised an error before the first write.

local id, ms = last + 1, string.format('%.0f', math.max(now, active))
local answer = id .. '-' .. ms .. '-' .. epoch .. '-' .. count
local recorded = record_answer_once(request, answer, box.requests, window, now)
if recorded then
  local first, first_epoch = string.match(recorded, '^(%d+)%-%d+%-(%d+)')
  return {recorded, first_epoch == epoch and redis.call('HGET', box.mail, first)}
end

if count > 1 then
  redis.call('HDEL', box.mail, replaced)
  remove_ids(box, replaced, replaced)
end
redis.call('HSET', box.mail, id, '[' .. ms .. ',' .. count .. ',' .. content)
redis.call('ZADD', box.order, id, id)
if group ~= '' then
  redis.call('ZADD', box.groups, id, group)
end
redis.call('SET', box.newest, id .. '-' .. ms .. '-' .. epoch .. '-' .. acked)
-- The hash of entries expires when its newest entry is too old.
if not same_second and limits.age > 0 then
  redis.call('PEXPIREAT', box.mail, string.format('%.0f', ms + limits.age + 1000))
elseif not same_second then
  redis.call('PERSIST', box.mail)
end
trim(box, excess)
publish_hint('b', box.newest)
return answer
