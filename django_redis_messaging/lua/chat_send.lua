-- Appends a message.
--
-- uses _log.lua
-- uses _requests.lua
-- uses _time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 requests, first hash
-- KEYS  6 requests, second hash
-- ARGV  1 sender
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4 content of the entry: everything after ms and count
-- ARGV  5 id of the message that is replied to, or 0
-- ARGV  6 maximum number of entries in a chat
-- ARGV  7 maximum age of an entry: ms, 0 for none
-- Returns the value of newest, or 'no chat', 'no member', 'no message'
local newest, members, counts, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local requests = {KEYS[5], KEYS[6]}
local sender, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local content, reply_to = ARGV[4], tonumber(ARGV[5])
local limits = {length = tonumber(ARGV[6]), age = tonumber(ARGV[7])}

-- A repeat gets its first answer even if the message could not be sent now.
local function answer_or(refusal)
  return find_answer(request, requests, window, milliseconds()) or refusal
end

local last, active, epoch, keep = read_newest(newest)
if not last then
  return answer_or('no chat')
end
local position = redis.call('ZSCORE', members, sender)
if not position then
  return answer_or('no member')
end
if reply_to > last then
  return answer_or('no message')
end
-- The new entry counts as read by its sender only if the sender has read all entries before it. Otherwise the
-- position must stay: moving it would ack unread messages of others.
local is_behind = tonumber(position) < last
local count = is_behind and (redis.call('HGET', counts, 's' .. sender) or 0) + 1 or '0'
local first = first_id(log, last)
-- Every key has been read by now: a key of another type has raised an error before the first write.

local now = milliseconds()
local id = tostring(last + 1)
local ms = string.format('%.0f', math.max(now, active))
local value = id .. '-' .. ms .. '-' .. epoch .. '-' .. keep
local recorded = record_answer_once(request, value, requests, window, now, active)
if recorded then
  return recorded
end

redis.call('RPUSH', log, '[' .. ms .. ',' .. count .. ',' .. content)
redis.call('SET', newest, value)
first = apply_limits(log, first, last + 1, now, limits)
if is_behind then
  redis.call('HSET', counts, 's' .. sender, count)
  return value
end
redis.call('ZADD', members, id, sender)
-- Acks trim exactly. Here the log may exceed `keep` by a sixteenth, so that few sends trim.
if last + 1 - first >= keep + math.floor(keep / 16) then
  trim_acked(members, log, first, last + 1, keep)
end
return value
