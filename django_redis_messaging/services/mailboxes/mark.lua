-- Marks mails as read.
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
-- ARGV  5… ids
-- Returns how many of them were unread; for a repeat, the first answer
local box = mailbox_at(KEYS)
local request, window = ARGV[1], tonumber(ARGV[2])
local limits = {length = tonumber(ARGV[3]), age = tonumber(ARGV[4])}

-- Returns the groups whose unread mail is among `marks`: all ids are from `from` to `to`.
local function groups_of(marks, from, to)
  local found, marked = {}, {}
  local groups = redis.call('ZRANGEBYSCORE', box.groups, from, to, 'WITHSCORES')
  if #groups > 0 then
    for at = 1, #marks, 2 do
      marked[tonumber(marks[at])] = true
    end
  end
  for at = 1, #groups, 2 do
    if marked[tonumber(groups[at + 1])] then
      found[#found + 1] = groups[at]
    end
  end
  return found
end

local now = milliseconds()
local recorded = find_answer(request, box.requests, window, now)
if recorded then
  return tonumber(recorded)
end
local first = first_id(box, count_excess(box, now, limits))
local _, _, _, acked = read_newest(box)
check_types('ZCARD', box.marked, box.groups)
local lowest = math.max(first, (acked or 0) + 1)
local marks, from, to = {}, math.huge, 0
for at = 5, #ARGV do
  local id = tonumber(ARGV[at])
  if id >= lowest and redis.call('HEXISTS', box.mail, id) == 1 then
    marks[#marks + 1] = ARGV[at]
    marks[#marks + 1] = ARGV[at]
    from, to = math.min(from, id), math.max(to, id)
  end
end
if #marks == 0 then
  return 0
end
-- First a write that Redis never refuses. A group whose unread mail is read has none.
redis.call('ZREM', box.groups, '', unpack(groups_of(marks, from, to)))
local unread = redis.call('ZADD', box.marked, unpack(marks))
if unread > 0 then
  record_answer(request, unread, box.requests, window, now)
  publish_hint('b', box.newest)
end
return unread
