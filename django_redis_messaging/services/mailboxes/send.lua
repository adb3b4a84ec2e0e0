-- Puts a mail into a mailbox. It replaces the unread mail of its group.
--
-- uses _mailbox.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- It names its keys itself: with all of them in a table, as in other scripts, it would take longer.
--
-- KEYS  1 newest
-- KEYS  2 ids
-- KEYS  3 mail
-- KEYS  4 marked
-- KEYS  5 groups
-- KEYS  6 lost
-- KEYS  7 requests, first turn
-- KEYS  8 requests, second turn
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 content of the entry: sender, group, payload
-- ARGV  4 group, or ''
-- ARGV  5 maximum number of mails in a mailbox
-- ARGV  6 maximum age of a mail: ms, 0 for none
-- Returns "id-ms-epoch-count"; for a repeat, {the first answer, the entry if it is still stored}
local newest, ids, mail, marked, groups, lost = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local requests = {KEYS[7], KEYS[8]}
local request, window, content, group = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local max_length, max_age = tonumber(ARGV[5]), tonumber(ARGV[6])

local now = milliseconds()
-- What newest would hold before the first mail.
-- rare
local function before_first()
  return '0-0-' .. digits(microseconds()) .. '-0'
end

-- Removes what is left of a mailbox whose key newest was lost: ids begin with 1 again.
-- rare
local function remove_rest()
  check_types('ZCARD', marked, groups, lost)
  check_types('HLEN', mail)
  redis.call('UNLINK', ids, mail, marked, groups, lost)
end

local value, length = redis.call('GET', newest), redis.call('LLEN', ids)
if not value and length > 0 then
  remove_rest()
  length = 0
end
local last, active, epoch, acked = string.match(value or before_first(), NEWEST)
-- In a burst, once per second suffices to check the age, which reads the oldest mail, and to remove mails beyond the
-- limits, unless their number exceeds a sixteenth of the length: reads ignore them.
local same_second = math.floor(active / 1000) == math.floor(now / 1000)

-- Returns how many mails are beyond the limits, the mail to replace (or nil), and the count of the new one.
-- rare
local function read_mails()
  local box, replaced = mailbox_at(KEYS), group ~= '' and redis.call('ZSCORE', groups, group)
  local excess = count_excess(box, now, {length = max_length, age = max_age}, same_second and not replaced)
  if not replaced or tonumber(replaced) < first_id(box, excess) then
    return excess, nil, 1
  end
  return excess, replaced, string.match(redis.call('HGET', mail, replaced), '^%[%d+,(%d+)') + 1
end

local excess, replaced, count = 0, nil, 1
if group ~= '' or not same_second then
  excess, replaced, count = read_mails()
end
excess = math.max(excess, length + (replaced and 0 or 1) - max_length)
local trims = excess > (same_second and max_length / 16 or 0)
if trims or replaced then
  check_types('ZCARD', marked, groups, lost)
end
-- Every key but the mails has been read by now: a key of another type has raised an error before the first write.

local id, ms = tostring(last + 1), tostring(math.max(now, active))
local answer = id .. '-' .. ms .. '-' .. epoch .. '-' .. count
local recorded = record_answer_once(request, answer, requests, window, now)
if recorded then
  local first, first_epoch = string.match(recorded, '^(%d+)%-%d+%-(%d+)')
  return {recorded, first_epoch == epoch and redis.call('HGET', mail, first)}
end
local stored = redis.pcall('HSET', mail, id, '[' .. ms .. ',' .. count .. ',' .. content)
if type(stored) == 'table' then -- a key of another type
  forget_answer(request, requests)
  return stored
end

-- Removes the mail that the new one replaces.
-- rare
local function remove_replaced()
  remove(mailbox_at(KEYS), replaced)
end

-- The hash of entries expires when its newest entry is too old.
-- rare
local function set_expiry()
  if max_age > 0 then
    redis.call('PEXPIREAT', mail, ms + max_age + 1000)
  else
    redis.call('PERSIST', mail)
  end
end

-- rare
local function remove_oldest()
  trim(mailbox_at(KEYS), excess)
end

if replaced then
  remove_replaced()
end
redis.call('RPUSH', ids, id)
if group ~= '' then
  redis.call('ZADD', groups, id, group)
end
redis.call('SET', newest, id .. '-' .. ms .. '-' .. epoch .. '-' .. acked)
if not same_second then
  set_expiry()
end
if trims then
  remove_oldest()
end
publish_hint('b', newest)
return answer
