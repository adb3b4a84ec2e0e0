-- Appends a message. Its sender no longer counts as typing.
--
-- uses _chat.lua
-- uses _log.lua
-- uses _positions.lua
-- uses common/_hints.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- It has an order of keys of its own: with all keys of a chat in a table, as in other scripts, it would take 10 % longer.
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 own
-- KEYS  4 log
-- KEYS  5 requests, first hash
-- KEYS  6 requests, second hash
-- KEYS  7 typing
-- ARGV  1 sender
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4 content of the entry: everything from the nonce to what follows the body
-- ARGV  5 id of the message that is replied to, or 0
-- ARGV  6-8 limits of the log (_chat.lua)
-- ARGV  9… mentioned users, each followed by the user as JSON: those who are members are stored
-- Returns the value of newest, with mentions {value of newest, entry}; for a repeat, {the first answer, the entry if it
-- is still stored}; or 'no chat', 'no member', 'no message'
local newest, members, own, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local requests, typing = {KEYS[5], KEYS[6]}, KEYS[7]
local sender, request_id, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local content, reply_to = ARGV[4], tonumber(ARGV[5])
local limits = limits_of(ARGV[6], ARGV[7], ARGV[8])
-- No name contains a NUL, so the same request id of another member is a different request.
local request = sender .. '\0' .. request_id

-- Removes some of the entries that are no longer in the log: members who send and never ack leave them behind. Four at
-- random for each one added keep the set below four thirds of the log's length.
local function sweep_own(first, last)
  if redis.call('ZCARD', own) <= last - first + 1 then
    return
  end
  for _, entry in ipairs(redis.call('ZRANDMEMBER', own, 4)) do
    if tonumber(string.sub(entry, -16)) < first then
      redis.call('ZREM', own, entry)
    end
  end
end

local chat = read_chat(newest)

-- Returns what a repeat gets.
local function first_message(answer)
  local id, epoch = string.match(answer, '^(%d+)%-%d+%-%d+%-(%d+)')
  return {answer, epoch == chat.epoch and redis.call('LINDEX', log, id - chat.last - 1)}
end

if not chat then
  return 'no chat'
end
local position = read_position(members, sender)
if not position then
  return 'no member'
end
if reply_to > chat.last then
  -- A repeat gets its first answer even if the message could not be sent now.
  local answer = find_answer(request, requests, window, milliseconds())
  return answer and first_message(answer) or 'no message'
end
local id, stored = chat.last + 1, first_stored(log, chat.last)
-- The new entry counts as read by its sender only if the sender has read all entries before it. Otherwise the
-- position must stay: moving it would ack unread messages of others.
local is_behind = position < chat.last
if is_behind then
  redis.call('ZCARD', own)
end
local is_typing = redis.call('ZSCORE', typing, sender)
local mentioned = {}
for at = 9, #ARGV, 2 do
  if redis.call('ZSCORE', members, ARGV[at]) then
    mentioned[#mentioned + 1] = ARGV[at + 1]
  end
end
if #mentioned > 0 then
  content = content .. ',[' .. table.concat(mentioned, ',') .. ']'
end
-- Every key has been read by now: a key of another type has raised an error before the first write.

local now = milliseconds()
local ms = digits(math.max(now, tonumber(chat.ms)))
local entry, size = new_entry(ms, content, chat.total)
local value = newest_value(id, ms, content, chat.epoch, chat.keep, chat.total + size, limits)
-- Only the entry says which of the mentioned users are members.
local answer = #ARGV > 8 and {value, entry} or value
local recorded = record_answer_once(request, value, requests, window, now)
if recorded then
  return first_message(recorded)
end

publish_hint('m', newest)
if is_typing then
  redis.call('ZREM', typing, sender)
end
redis.call('RPUSH', log, entry)
redis.call('SET', newest, value)
set_expiry(log, chat.mark, tonumber(ms), limits)
local first = stored
chat.last, chat.total = id, chat.total + size
if limits.age > 0 or id - stored >= limits.length or chat.total > limits.bytes then
  first, stored = apply_limits(log, stored, chat, now, limits)
end
if is_behind then
  redis.call('ZADD', own, 0, own_entry(sender, id))
  sweep_own(first, id)
  return answer
end
redis.call('ZADD', members, id, sender)
-- Acks trim exactly. Here the log may exceed `keep` by a sixteenth, so that few sends trim.
if id - stored >= chat.keep + math.floor(chat.keep / 16) then
  trim_acked(members, log, stored, id, chat.keep)
end
return answer
