-- Releases a read-write lock, and wakes the next waiting clients. A caller that doesn't hold it leaves the queue.
--
-- uses _rwlocks.lua
-- uses common/_polls.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1 holders
-- KEYS  2 grants
-- KEYS  3 readers
-- KEYS  4 writers
-- KEYS  5 alive
-- KEYS  6 gate
-- ARGV  1 token
-- Returns 1, also to a repeat; or 0 if the caller doesn't hold the lock: its lease had expired, or it was in the queue
local holders, grants, readers, writers, alive, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token = ARGV[1]
local RELEASED = -2 ^ 52 -- added to the time of a release (µs)
local now, ends = microseconds(), tonumber(redis.call('ZSCORE', holders, token) or 0)
if ends < 0 then -- a repeat: it has been released
  return 1
end

-- rare
local function read_queue()
  check_types('ZCARD', readers, writers)
  return admitted_ticket(gate)
end

local admitted = redis.call('ZCARD', alive) > 0 and read_queue()

-- rare
local function leave_queue_and_admit_next()
  redis.call('ZREM', readers, token)
  redis.call('ZREM', writers, token)
  redis.call('ZREM', alive, token)
  remove_dead_clients(readers, writers, alive, now)
  local last, last_end = last_holder(holders)
  local is_held = last_end > now
  if not is_held or last ~= redis.call('HGET', grants, 'writer') then
    admit_next(readers, writers, gate, not is_held, admitted)
  end
end

if ends > 0 then
  -- HDEL comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
  redis.call('HDEL', grants, token)
  -- A lease that has ended is not valid again when the clock is set back.
  redis.call('ZADD', holders, ends > now and now + RELEASED or 0, token)
end
if admitted then
  leave_queue_and_admit_next()
end
return ends > now and 1 or 0
