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
local max_length, max_age, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- No name contains a NUL, so the same request id of another member is a different request.
local request = sender .. '\0' .. request_id

local before = redis.call('GET', newest)
if not before then
  return 'no chat'
end
-- As text, as far as possible: Lua converts numbers slowly.
local last, _, latest, epoch, keep, total, expires = string.match(before, NEWEST)
last = tonumber(last)
local position = read_position(members, sender)
if not position then
  return 'no member'
end

-- Returns what a repeat gets.
local function first_message(answer)
  local id, first_epoch = string.match(answer, '^(%d+)%-%d+%-%d+%-(%d+)')
  return {answer, first_epoch == epoch and redis.call('LINDEX', log, id - last - 1)}
end

-- Returns the content with the mentioned users who are members.
local function with_mentions()
  local mentioned = {}
  for at = 9, #ARGV, 2 do
    if redis.call('ZSCORE', members, ARGV[at]) then
      mentioned[#mentioned + 1] = ARGV[at + 1]
    end
  end
  return #mentioned > 0 and content .. ',[' .. table.concat(mentioned, ',') .. ']' or content
end

-- Applies the limits to the log with the new entry. Returns the same as apply_limits.
-- rare
local function limit_log(stored, id, new_total, now)
  local limits = {length = max_length, age = max_age, bytes = max_bytes}
  return apply_limits(log, stored, {last = id, total = new_total}, now, limits)
end

-- Adds the new entry to those that members have sent while they were behind. Removes some of these that are no longer in
-- the log: members who send and never ack leave them behind. Four at random for each one added keep the set below four
-- thirds of the log's length.
-- rare
local function add_own(id, first)
  redis.call('ZADD', own, 0, own_entry(sender, id))
  if redis.call('ZCARD', own) <= id - first + 1 then
    return
  end
  for _, entry in ipairs(redis.call('ZRANDMEMBER', own, 4)) do
    if tonumber(string.sub(entry, -16)) < first then
      redis.call('ZREM', own, entry)
    end
  end
end

if reply_to > last then
  -- A repeat gets its first answer even if the message could not be sent now.
  local answer = find_answer(request, requests, window, milliseconds())
  return answer and first_message(answer) or 'no message'
end
-- The new entry counts as read by its sender only if the sender has read all entries before it. Otherwise the
-- position must stay: moving it would ack unread messages of others.
local is_behind = position < last
if is_behind then
  redis.call('ZCARD', own)
end
local is_typing = redis.call('ZSCORE', typing, sender)
if #ARGV > 8 then
  content = with_mentions()
end
-- Every key but the log has been read by now: a key of another type has raised an error before the first write.

local now = milliseconds()
local id, ms = last + 1, digits(math.max(now, latest))
local entry, size = new_entry(ms, content, total)
local value = newest_value(id, ms, content, epoch, keep, total + size, max_age)
-- Only the entry says which of the mentioned users are members.
local answer = #ARGV > 8 and {value, entry} or value
local recorded = record_answer_once(request, value, requests, window, now)
if recorded then
  return first_message(recorded)
end
local length = redis.pcall('RPUSH', log, entry)
if type(length) == 'table' then -- a key of another type
  forget_answer(request, requests)
  return length
end

publish_hint('m', newest)
if is_typing then
  redis.call('ZREM', typing, sender)
end
redis.call('SET', newest, value)
set_expiry(log, expires, ms, max_age)
local stored = id - length + 1
local first = stored
if max_age > 0 or length > max_length or total + size > max_bytes then
  first, stored = limit_log(stored, id, total + size, now)
end
if is_behind then
  add_own(id, first)
  return answer
end
redis.call('ZADD', members, id, sender)
-- Acks trim exactly. Here the log may exceed `keep` by a sixteenth, so that few sends look whether all members have acked
-- the first entry.
local step = math.floor(keep / 16) + 1
if id % step == 0 and id - stored >= tonumber(keep) and redis.call('ZCOUNT', members, '-inf', '(' .. stored) == 0 then
  trim_acked(members, log, stored, id, tonumber(keep))
end
return answer
