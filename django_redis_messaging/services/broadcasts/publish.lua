-- Publishes an event.
--
-- uses _broadcast.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 head
-- KEYS  2 requests, first turn
-- KEYS  3 requests, second turn
-- KEYS  4 bell
-- KEYS  5 waiting
-- KEYS  6… consecutive buckets, as the caller's clock suggests
-- ARGV  1 payload, as JSON
-- ARGV  2 request id
-- ARGV  3 request window: ms
-- ARGV  4 length of a bucket: ms
-- ARGV  5 how long a bucket is kept after its end: ms
-- ARGV  6 maximum number of events in the channel
-- ARGV  7 how long an idle channel is kept, from the first event of its newest bucket on: ms
-- ARGV  8 number of the first bucket given
-- Returns "id-us-epoch" of the event, followed by + if the channel needs trimming. If nothing was published: 'none'
-- if the channel doesn't exist, the number of the bucket that the caller has to give, or for a repeat the first answer,
-- a space, and the event if it is still stored
local head, requests, bell, waiting = KEYS[1], {KEYS[2], KEYS[3]}, KEYS[4], KEYS[5]
local payload, request, window = ARGV[1], ARGV[2], tonumber(ARGV[3])
local length, retention, max_length = tonumber(ARGV[4]), ARGV[5], ARGV[6]
local idle_ttl, start = ARGV[7], tonumber(ARGV[8])
local last, active, epoch, first = string.match(redis.call('GET', head) or '', HEAD)
if not last then
  return 'none'
end
local clock = microseconds()
local moment = math.max(clock, active + 1)
local number = math.floor(moment / 1000 / length)

-- Returns what a repeat gets.
-- rare
local function first_event(answer)
  local id, us, first_epoch = string.match(answer, '^(%d+)%-(%d+)%-(%d+)')
  local first_number = bucket_at(us, length)
  local bucket = KEYS[6 + first_number - start]
  if first_number < start or not bucket then
    return first_number
  end
  local oldest = first_epoch == epoch and first_id(bucket)
  local event = oldest and oldest <= tonumber(id) and redis.call('LINDEX', bucket, id - oldest)
  return answer .. ' ' .. (event or '')
end

-- Returns the answer to a caller that did not give the bucket.
-- rare
local function refuse()
  local before = find_answer(request, requests, window, clock / 1000)
  return before and first_event(before) or number
end

-- rare
local function wake_readers(id)
  redis.call('XADD', bell, 'MAXLEN', 1, id .. '-0', 'id', '')
  redis.call('PEXPIRE', bell, 60000)
end

local bucket = number >= start and KEYS[6 + number - start]
if not bucket then
  return refuse()
end
local has_readers = redis.call('EXISTS', waiting) == 1
if has_readers then
  redis.call('XLEN', bell)
end
-- Every key but the bucket has been read by now except the requests, which are written first: a key of another type
-- raises an error before anything is changed.

local id, us = tostring(last + 1), digits(moment)
local answer = id .. '-' .. us .. '-' .. epoch
local before = record_answer_once(request, answer, requests, window, clock / 1000)
if before then
  return first_event(before)
end
local size = redis.pcall('RPUSH', bucket, '[' .. id .. ',' .. us .. ',' .. active .. ',' .. payload .. ']')
if type(size) == 'table' then -- a key of another type
  forget_answer(request, requests)
  return size
end
if size == 1 then -- once in a bucket suffices: setting a TTL takes longer than the rest of SET
  redis.call('SET', head, answer .. '-' .. first, 'PX', idle_ttl)
  redis.call('PEXPIREAT', bucket, (number + 1) * length + retention)
else
  redis.call('SET', head, answer .. '-' .. first, 'KEEPTTL')
end
if has_readers then
  wake_readers(id)
end
-- Trim only once the channel is 1/16 too long: readers ignore the excess anyway.
return id - first >= max_length + math.floor(max_length / 16) and answer .. '+' or answer
