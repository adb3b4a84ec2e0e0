-- Counts the jobs of queues as if everything due by time had been done.
--
-- uses _places.lua
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16… queues, see _queue.lua
-- ARGV  1 age at which a dead job is removed: ms
-- ARGV  2 expired leases at which a job is dead, 0 if these count as failures
-- Returns six numbers for each queue, in one list: ready, delayed, leased, dead, how long the oldest ready job has been due
-- (ms), or -1, and parked. The last queues are left out if many states had to be read for those before them.
local records, max_age, max_lost = records_at(KEYS), tonumber(ARGV[1]), tonumber(ARGV[2])
local now = milliseconds()
-- The number of states that have been read, and that at which no further queue is counted.
local read, ENOUGH = 0, 100

-- How many delayed jobs are due, how many are not, and the earliest moment at which one is due.
local function count_delayed(queue)
  local all = redis.call('ZCARD', queue.delayed)
  if all == 0 then
    return 0, 0
  end
  local marker = tonumber(redis.call('ZSCORE', queue.delayed, MARKER) or nil)
  local due = redis.call('ZCOUNT', queue.delayed, '-inf', now) - (marker and marker <= now and 1 or 0)
  local first = redis.call('ZRANGE', queue.delayed, 0, 1, 'WITHSCORES')
  return due, all - (marker and 1 or 0) - due, tonumber(first[1] == MARKER and first[4] or first[2])
end

-- How many leases have expired, how many of these leave a dead job, since the attempt was the last one, and the earliest
-- moment at which one of the others expired. Only the first 200 are read.
local function count_expired(queue)
  local expired, dying, oldest = redis.call('ZCOUNT', queue.leased, '-inf', now), 0, nil
  if expired == 0 then
    return 0, 0
  end
  local ids = redis.call('ZRANGEBYSCORE', queue.leased, '-inf', now, 'LIMIT', 0, 200)
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(ids))) do
    local state = text and parse_state(text)
    if state then
      count_lost(state, max_lost)
    end
    if state and not has_attempts_left(state, max_lost) then
      dying = dying + 1
    else
      oldest = oldest or tonumber(redis.call('ZSCORE', queue.leased, ids[at]))
    end
  end
  read = read + #ids
  return expired, dying, oldest
end

-- The earliest moment at which one of the ready jobs was due. The first job of each priority is the oldest of it, unless
-- groups take turns, or it was promoted.
local function oldest_ready(queue)
  local oldest, from = nil, '-inf'
  while true do
    local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then
      return oldest
    end
    local state = redis.call('HGET', records.states, head[1])
    local due = tonumber(state and string.match(state, ' due=(%d+)') or nil)
    oldest = math.min(oldest or math.huge, due or math.huge)
    read = read + 1
    from = next_band(head[2])
  end
end

local numbers = {}
for _, queue in ipairs(queues_at(KEYS)) do
  local due, delayed, first_due = count_delayed(queue)
  local expired, dying, first_expired = count_expired(queue)
  local oldest = math.min(first_due or now + 1, first_expired or now + 1, oldest_ready(queue) or now + 1)
  for _, number in ipairs({
    redis.call('ZCARD', queue.ready) + due + expired - dying,
    delayed,
    redis.call('ZCARD', queue.leased) - expired,
    redis.call('ZCOUNT', queue.dead, '(' .. digits(now - max_age), '+inf') + dying,
    oldest <= now and now - oldest or -1,
    redis.call('ZCARD', queue.parked),
  }) do
    numbers[#numbers + 1] = number
  end
  if read >= ENOUGH then
    break
  end
end
return numbers
