-- Appends a message.
--
-- uses _clock.lua
-- uses _requests.lua
-- uses _log.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- KEYS  5 requests, first turn
-- KEYS  6 requests, second turn
-- ARGV  1 sender
-- ARGV  2 tail of the entry
-- ARGV  3 request id
-- ARGV  4 request window: ms
-- ARGV  5 most entries a chat holds
-- ARGV  6 greatest age of an entry: ms, 0 for any
-- ARGV  7 id that is replied to, or 0
-- Returns the line of newest, or 'no chat', 'no member', 'no message'
local memory = {KEYS[5], KEYS[6]}

-- A repeat is told what its first sending did, though it could not be sent now.
local function refused(why)
  return answer_to(ARGV[3], memory, tonumber(ARGV[4]), clock()) or why
end

local last, active, epoch, keep = newest_of(KEYS[1])
if not last then
  return refused('no chat')
end
local position = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not position then
  return refused('no member')
end
if tonumber(ARGV[7]) > last then
  return refused('no message')
end
-- The sender has read this one too, unless something before it is unread: then the position stays, for it
-- would swallow what others said.
local behind = tonumber(position) < last
local count = behind and (redis.call('HGET', KEYS[3], 's' .. ARGV[1]) or 0) + 1 or '0'
local first = first_of(KEYS[4], last)
-- Every key has been read by now: one that holds another type has said so before the first write.

local now = clock()
local id = tostring(last + 1)
local ms = string.format('%.0f', math.max(now, active))
local line = id .. '-' .. ms .. '-' .. epoch .. '-' .. keep
local answered = remembered(ARGV[3], line, memory, tonumber(ARGV[4]), now, active)
if answered then
  return answered
end

redis.call('RPUSH', KEYS[4], '[' .. ms .. ',' .. count .. ',' .. ARGV[2])
redis.call('SET', KEYS[1], line)
first = limited(KEYS[4], first, last + 1, now, tonumber(ARGV[5]), tonumber(ARGV[6]))
if behind then
  redis.call('HSET', KEYS[3], 's' .. ARGV[1], count)
else
  redis.call('ZADD', KEYS[2], id, ARGV[1])
  -- now and then: acks do it exactly
  if last + 1 - first >= keep + math.floor(keep / 16) then
    released(KEYS[2], KEYS[4], first, last + 1, tonumber(keep))
  end
end
return line
