-- Settles leases, does what is due by time, and leases the next jobs.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses common/_time.lua
--
-- KEYS  1-8 records, see _records.lua
-- KEYS  9… queues, see _queue.lua; the first one is served first
-- ARGV  1 token of the new leases
-- ARGV  2 worker, or -
-- ARGV  3 length of the new leases: ms; 0: the jobs are deleted at once
-- ARGV  4 number of jobs
-- ARGV  5 age that a job must have: ms since it became due
-- ARGV  6 limits, as in _leases.lua
-- ARGV  7… leases to settle, each: queue (1, 2 …), id, fence, token, then outcome, ms, line as in jobs/settle.lua
-- Returns {now, due, settled, jobs}: the server's clock (ms); the ms until something is due, or -1; for each
-- settled lease 1, or 0 if it was stale; for each job queue, id, payload, state (flat: Redis converts each table of
-- a reply at the cost of a command)
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _results.lua.
local records, queues = records_at(KEYS), queues_at(KEYS)
local new_lease = {token = ARGV[1], worker = ARGV[2], length = tonumber(ARGV[3])}
local wanted, min_age = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = parse_limits(ARGV[6])
local us = microseconds()
local now = math.floor(us / 1000)
-- This claim answers the wake-up. As a removal, which Redis never refuses, it also comes before all other writes:
-- when memory is full, they are allowed then.
redis.call('DEL', queues[1].bell)

local function settle_all()
  local FIRST, FIELDS = 7, 7
  local settled = {}
  for at = FIRST, #ARGV, FIELDS do
    local number, id, fence, token, kind, ms, line = unpack(ARGV, at, at + FIELDS - 1)
    local lease = {id = id, fence = fence, token = token}
    local outcome = {kind = kind, ms = tonumber(ms), line = line}
    settled[#settled + 1] = settle(queues[tonumber(number)], records, lease, outcome, now, limits)
  end
  return settled
end

-- Takes up to `count` ready jobs out of the queue.
local function take_ready(queue, count)
  local ids = {}
  for at, item in ipairs(redis.call('ZPOPMIN', queue.ready, count)) do
    if at % 2 == 1 then
      ids[#ids + 1] = item
    end
  end
  return ids
end

-- Takes up to `count` jobs that became due before the ms `before`. In a band the earlier ones come first, so a
-- head that is too young ends its band. Also returns when the oldest of the young ones became due.
local function take_old(queue, count, before)
  local ids, from, young = {}, '-inf', nil
  while #ids < count do
    local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not head[1] then
      break
    end
    local state = read_state(records, head[1])
    local due = state and tonumber(state.moment) or 0
    if due < before then -- not the same ms: only parts of the first and the last ms have passed
      redis.call('ZREM', queue.ready, head[1])
      ids[#ids + 1] = head[1]
    else
      young = math.min(young or due, due)
      from = next_band(head[2])
    end
  end
  return ids, young
end

-- Leases a job, or deletes it where no lease is wanted; returns its state as text. A lone job may have ended its
-- workers: two of its leases have expired, or one, if the next would be the last. Its attempt is started later, by
-- jobs/start_lone.lua. A first loss nearly always has another cause: a deploy, or another job of that worker.
local function lease_job(queue, id, state)
  if state.lost > 1 or (state.lost == 1 and limits.lost == 2) then
    state.status = 'h'
  else
    count_attempt(state, new_lease.worker, now)
  end
  if new_lease.length == 0 then
    release_unique(records, id, state.unique)
    delete_job(records, id, state.unique)
    return format_state(state)
  end
  state.fence = digits(math.max(tonumber(state.fence) + 1, us))
  state.token = new_lease.token
  local text = format_state(state)
  redis.call('HSET', records.states, id, text)
  redis.call('ZADD', queue.leased, digits(now + new_lease.length), id)
  return text
end

local jobs, taken = {}, 0

local function lease_all(number, ids)
  if #ids == 0 then
    return
  end
  local payloads = redis.call('HMGET', records.jobs, unpack(ids))
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(ids))) do
    if text and payloads[at] then
      local at_end = 4 * taken
      jobs[at_end + 1], jobs[at_end + 2], jobs[at_end + 3] = number, ids[at], payloads[at]
      jobs[at_end + 4] = lease_job(queues[number], ids[at], parse_state(text))
      taken = taken + 1
    end
  end
end

-- Serves one queue; returns the moments (ms) at which something of it is due.
local function serve(number, queue)
  if number > 1 then
    redis.call('DEL', queue.bell)
  end
  local next_due, next_end = sweep(queue, records, now, limits)
  local ids, young = {}, nil
  if min_age > 0 then
    ids, young = take_old(queue, wanted - taken, now - min_age)
  elseif wanted > 0 then
    ids = take_ready(queue, wanted - taken)
  end
  lease_all(number, ids)
  -- Wakes another worker for the jobs that are left; and for those due soon, as this worker may be busy then.
  local left = taken == wanted and redis.call('EXISTS', queue.ready) == 1
  if left or (taken > 0 and next_due and next_due < now + 1000) then
    ring_bell(queue)
  end
  return {next_due or false, next_end or false, young and young + min_age + 1 or false}
end

local settled = settle_all()
local soonest
for number, queue in ipairs(queues) do
  if taken == wanted and wanted > 0 then
    break
  end
  for _, moment in ipairs(serve(number, queue)) do
    soonest = moment and math.min(soonest or moment, moment) or soonest
  end
end
if wanted == 0 and remove_expired(queues, records, now, limits) then
  soonest = now
end
return {now, soonest and math.max(soonest - now, 0) or -1, settled, jobs}
