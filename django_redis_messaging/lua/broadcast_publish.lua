-- Publishes an event.
--
-- uses _requests.lua
-- uses _digits.lua
-- uses _channel.lua
--
-- KEYS  1 head
-- KEYS  2 requests, first turn
-- KEYS  3 requests, second turn
-- KEYS  4 bell
-- KEYS  5 waiting
-- KEYS  6… some buckets in a row, as the caller guesses them
-- ARGV  1 payload, as JSON
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4 length of a bucket: ms
-- ARGV  5 how long a bucket is kept after its end: ms
-- ARGV  6 most events the channel keeps
-- ARGV  7 how long an idle channel is kept: ms
-- ARGV  8 number of the first of these buckets
-- Returns "id-us-epoch" of the event, with a + where the channel is to be trimmed; or, with nothing done, 'none'
-- where there is no channel, or the number of the bucket that it has to be given
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]
local last, active, epoch, first = head_of(KEYS[1])
if not last then
  return 'none'
end
local since, length = tonumber(active), tonumber(ARGV[4])
local moment = math.max(clock, since + 1)
local number = math.floor(moment / 1000 / length)
local at = number - ARGV[8]
if at < 0 or at > #KEYS - 6 then
  return number
end
local bucket = KEYS[6 + at]
local begins = redis.call('LLEN', bucket) == 0
local waits = redis.call('EXISTS', KEYS[5]) == 1
if waits then
  redis.call('XLEN', KEYS[4])
end
-- Every key has been read by now, but for the requests, which are the first to be written: one that holds
-- another type says so before anything is changed.

local id, us = digits(last + 1), digits(moment)
local answer = id .. '-' .. us .. '-' .. epoch
local before = remembered(ARGV[2], answer, {KEYS[2], KEYS[3]}, tonumber(ARGV[3]), clock / 1000, since / 1000)
if before then
  return before
end
redis.call('RPUSH', bucket, '[' .. id .. ',' .. us .. ',' .. active .. ',' .. ARGV[1] .. ']')
redis.call('SET', KEYS[1], id .. '-' .. us .. '-' .. epoch .. '-' .. first, 'PX', ARGV[7])
if begins then
  redis.call('PEXPIREAT', bucket, digits((number + 1) * length + ARGV[5]))
end
if waits then
  redis.call('XADD', KEYS[4], 'MAXLEN', 1, id .. '-0', 'id', '')
  redis.call('PEXPIRE', KEYS[4], 60000)
end
-- Now and then: readers see no more than there may be.
return last + 1 - first >= ARGV[6] + math.floor(ARGV[6] / 16) and answer .. '+' or answer
