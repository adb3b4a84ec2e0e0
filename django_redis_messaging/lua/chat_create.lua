-- Makes a chat: its members at position 0, and a first message if there is one.
--
-- uses _clock.lua
-- uses _requests.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 requests, first turn
-- KEYS  6 requests, second turn
-- KEYS  7 roster
-- KEYS  8 standing
-- KEYS  9 info
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 token of this joining
-- ARGV  4 title
-- ARGV  5 open: 1 or 0
-- ARGV  6 keep_last
-- ARGV  7 tail of the first entry, or ''
-- ARGV  8… members, each once, the sender first: 1000 at most
-- Returns {epoch}; of a repeat {epoch, token in force, …}, with '' for who is no member (any more); or
--   'exists'
local now = clock()
local memory = {KEYS[5], KEYS[6]}
-- No request id has a NUL: a send of the same request is another one.
local request = 'create\0' .. ARGV[1]
local answered = answer_to(request, memory, tonumber(ARGV[2]), now)
if answered then
  local told = {string.match(redis.call('GET', KEYS[1]) or '', '^%d+%-%d+%-(%d+)') or answered}
  for at, line in ipairs(redis.call('HMGET', KEYS[7], unpack(ARGV, 8))) do
    told[at + 1] = line and string.match(line, '(%S+)$') or ''
  end
  return told
end
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7], KEYS[8], KEYS[9]) > 0 then
  return 'exists'
end

local time = redis.call('TIME')
local epoch = string.format('%.0f', time[1] * 1000000 + time[2])
remembered(request, epoch, memory, tonumber(ARGV[2]), now, 0)
local last = ARGV[7] == '' and 0 or 1
redis.call('SET', KEYS[1], last .. '-' .. now .. '-' .. epoch .. '-' .. ARGV[6])
redis.call('HSET', KEYS[9], 'created', now, 'title', ARGV[4], 'open', ARGV[5], 'owners', 1,
  'joins', #ARGV - 7, 'edits', 0)

local positions, order, roster = {}, {}, {}
for at = 8, #ARGV do
  local role = at == 8 and 'owner' or 'member'
  positions[#positions + 1] = 0
  positions[#positions + 1] = ARGV[at]
  order[#order + 1] = at - 7
  order[#order + 1] = ARGV[at]
  roster[#roster + 1] = ARGV[at]
  roster[#roster + 1] = '0 ' .. now .. ' ' .. role .. ' ' .. ARGV[3]
end
redis.call('ZADD', KEYS[2], unpack(positions))
redis.call('ZADD', KEYS[8], unpack(order))
redis.call('HSET', KEYS[7], unpack(roster))

if last == 1 then
  redis.call('RPUSH', KEYS[4], '[' .. now .. ',0,' .. ARGV[7])
  redis.call('ZADD', KEYS[2], 1, ARGV[8])
end
return {epoch}
