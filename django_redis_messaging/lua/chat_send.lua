-- Appends a message.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _log.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 requests, first turn
-- KEYS  6 requests, second turn
-- KEYS  7 requests, third turn
-- ARGV  1 sender
-- ARGV  2 tail of the entry
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5 most entries a chat holds
-- ARGV  6 greatest age of an entry: ms, 0 for any
-- ARGV  7 id that is replied to, or 0
-- Returns {id, ms, epoch}, or 'no chat', 'no member', 'no message'
local info = redis.call('HMGET', KEYS[1], 'last', 'first', 'active', 'epoch', 'keep')
if not info[1] then
  return 'no chat'
end
local position = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not position then
  return 'no member'
end

local now = clock()
local window = tonumber(ARGV[4])
local memory = {KEYS[5], KEYS[6], KEYS[7]}
local answered = answer_to(ARGV[3], memory, window, now)
if answered then
  local id, ms, epoch = string.match(answered, '^(%d+) (%d+) (%d+)$')
  return {tonumber(id), tonumber(ms), epoch}
end
if tonumber(ARGV[7]) > tonumber(info[1]) then
  return 'no message'
end

local id, first = info[1] + 1, tonumber(info[2])
local ms = math.max(now, tonumber(info[3]))
local sent, acked = counted(KEYS[3], ARGV[1])
sent = sent + 1
redis.call('RPUSH', KEYS[4], '[' .. ms .. ',' .. sent .. ',' .. ARGV[2])
redis.call('HSET', KEYS[1], 'last', id, 'active', ms)
-- The sender has read this one too, unless something before it is unread: then the position stays, for it
-- would swallow what others said.
if tonumber(position) == id - 1 then
  acked = sent
  redis.call('ZADD', KEYS[2], id, ARGV[1])
end
redis.call('HSET', KEYS[3], ARGV[1], sent .. ' ' .. acked)
remember(ARGV[3], id .. ' ' .. ms .. ' ' .. info[4], memory, window, now)

first = limited(KEYS[1], KEYS[4], first, id, now, tonumber(ARGV[5]), tonumber(ARGV[6]))
released(KEYS[1], KEYS[2], KEYS[4], first, id, tonumber(info[5]))
return {id, ms, info[4]}
