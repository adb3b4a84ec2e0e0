-- Settles leases, does what is due by time, and leases the next jobs that don't have to wait for anything.
--
-- uses _leases.lua
-- uses _places.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _results.lua
-- uses _tags.lua
-- uses _waiting.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16… queues, see _queue.lua; the first one is served first
-- ARGV  1 token of the new leases
-- ARGV  2 worker, or -
-- ARGV  3 length of the new leases: ms; 0: the jobs are deleted at once
-- ARGV  4 number of jobs
-- ARGV  5 age that a job must have: ms since it became due
-- ARGV  6-10 limits of the slot, see _leases.lua: max_dead, dead_ttl, max_lost, max_results, result_ttl
-- ARGV  11… leases to settle, each: queue (1, 2 …), id, fence, token, then outcome, ms, line as in jobs/settle.lua
-- Returns {now, due, settled, jobs}: the server's clock (ms); if there are fewer jobs than wanted, or none are, the ms
-- until something is due, or -1; for each settled lease 1, or 0 if it was stale; for each job queue, id, payload, state
-- (flat: Redis converts each table of a reply at the cost of a command)
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _ended.lua.
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queues = records_at(KEYS), queues_at(KEYS)
local new_token, worker, length = ARGV[1], ARGV[2], tonumber(ARGV[3])
local wanted, min_age = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = limits_at(ARGV, 6)
local FIRST, FIELDS = 11, 7
local us = microseconds()
local now = math.floor(us / 1000)
-- This claim answers the wake-up. As a removal, which Redis never refuses, it also comes before all other writes:
-- when memory is full, they are allowed then.
redis.call('DEL', queues[1].bell)

local settled = {}
for at = FIRST, #ARGV, FIELDS do
  local queue = queues[tonumber(ARGV[at])]
  settled[#settled + 1] = settle(queue, records, now, limits, unpack(ARGV, at + 1, at + FIELDS - 1))
end

-- Leases a job, or deletes it where no lease is wanted; returns its state as text.
local function lease_job(queue, id, state)
  count_attempt(state, worker, now)
  if length == 0 then
    release_unique(records, id, state.unique)
    remove_tags(records, id, state.more)
    delete_job(records, id, state.unique)
    return format_state(state)
  end
  local moment = next_moment(us)
  state.fence = digits(state.fence == '0' and moment or math.max(state.fence + 1, moment))
  state.token = new_token
  local text = format_state(state)
  redis.call('HSET', records.states, id, text)
  redis.call('ZADD', queue.leased, digits(now + length), id)
  return text
end

local jobs, taken = {}, 0
-- Expired jobs that one claim ends.
local expirations_left = 100

-- Whether the claim has parked or ended so many jobs that it leases no more.
local function is_tired()
  return parkings_left <= 0 or expirations_left <= 0
end

-- rare
local function end_expired(queue, id, state, expired)
  expirations_left = expirations_left - 1
  finish_job(records, id, state, 'expired', '', tonumber(limits.result_ttl), now, limits, expired)
  if state.blocked ~= '-' then -- it was promoted: the next one is
    promote(records, queue, state.blocked, 1)
  end
end

local function lease(number, id)
  local queue, state = queues[number], read_state(records, id)
  if not state then
    return
  end
  leave_group(queue, state)
  local expired = expired_at(state, now)
  if expired then
    end_expired(queue, id, state, expired)
    return
  elseif not admit(records, queue, id, state, us, length > 0) then
    return
  end
  local payload = redis.call('HGET', records.jobs, id)
  if payload then
    local at = 4 * taken
    jobs[at + 1], jobs[at + 2], jobs[at + 3] = number, id, payload
    jobs[at + 4] = lease_job(queue, id, state)
    taken = taken + 1
  end
end

-- Returns jobs to the queue, from this one of the popped ones on, if one that was promoted meanwhile is before them.
-- rare
local function return_popped(queue, popped, from)
  if promoted[queue.bell].first > tonumber(popped[from + 1]) then
    return false
  end
  local ready = {}
  for at = from, #popped, 2 do
    ready[#ready + 1], ready[#ready + 2] = popped[at + 1], popped[at]
  end
  redis.call('ZADD', queue.ready, unpack(ready))
  return true
end

-- Leases the jobs of a queue, until there are enough. Returns when the oldest of those that are too young became due.
local function lease_jobs(number, queue)
  local popped, oldest
  repeat
    local left = wanted - taken
    promoted[queue.bell] = nil
    if min_age > 0 then
      popped, oldest = take_old(queue, records, left, now - min_age)
    else
      popped = redis.call('ZPOPMIN', queue.ready, digits(left))
    end
    for at = 1, #popped, 2 do
      lease(number, popped[at])
      if promoted[queue.bell] and at < #popped - 1 and return_popped(queue, popped, at + 2) then
        break
      end
    end
    local may_be_more = #popped == 2 * left or promoted[queue.bell]
  until taken == wanted or not may_be_more or is_tired()
  forget_groups(queue)
  return oldest or math.huge
end

if wanted > 0 then
  read_paused(records)
end
local soonest = math.huge
for number, queue in ipairs(queues) do
  if taken == wanted and wanted > 0 then
    break
  end
  if number > 1 then
    redis.call('DEL', queue.bell)
  end
  local next_due, oldest = sweep(queue, records, now, limits), math.huge
  local is_paused = is_queue_paused(queue)
  if wanted > 0 and not is_paused then
    oldest = lease_jobs(number, queue)
    next_due = math.min(next_due, queue.next_token or math.huge)
  end
  -- Wakes another worker for the jobs that are left; and for those due soon, as this worker may be busy then.
  local left = not is_paused and (taken == wanted or is_tired()) and redis.call('EXISTS', queue.ready) == 1
  if left or (taken > 0 and next_due < now + 1000) then
    ring_bell(queue)
  end
  if left and taken < wanted then
    soonest = now
  end
  if taken < wanted or wanted == 0 then
    soonest = math.min(soonest, next_due, first_moment(queue.leased), oldest + min_age + 1)
  end
end
if wanted == 0 and remove_expired(queues, records, now, limits) then
  soonest = now
end
if taken < wanted and next(promoted) then
  soonest = now -- in a queue that was served before
end
wake_for_promoted()
return {now, soonest < math.huge and math.max(soonest - now, 0) or -1, settled, jobs}
