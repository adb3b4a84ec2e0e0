-- Acquires a read-write lock for the caller, considering the clients ahead of it; otherwise queues the caller, if it
-- waits.
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
-- ARGV  1 token of the caller, the same for all its polls; one that holds the lock is a repeat after a lost reply
-- ARGV  2 1 to write, 0 to read
-- ARGV  3 lease: ms
-- ARGV  4 another token of the caller, with which it may hold the lock already; or empty
-- ARGV  5 how long a client stays in the queue without polling: ms
-- ARGV  6 maximum number of readers
-- ARGV  7 maximum length of the queue; 0: the caller doesn't wait, and leaves the queue
-- ARGV  8… up to 499 tokens of other waiting clients to keep in the queue
-- Returns the fence; 0 if the caller neither has the lock nor waits; nil if it holds the lock with its other token; -1 if
-- there are too many readers, -2 if the queue is full; or, if the caller waits, {its ticket, ms until it must poll again
-- if nothing wakes it before, those of the other clients that are not in the queue}
local holders, grants, readers, writers, alive, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, writes, lease, other_token = ARGV[1], ARGV[2] ~= '0', tonumber(ARGV[3]), ARGV[4]
local patience, max_readers, max_waiting = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local KEPT = 1000 -- released tokens that are kept; their number is checked when there are twice as many holders
local queue = writes and writers or readers
local now = microseconds()
local latest, writer, fence = unpack(redis.call('HMGET', grants, 'latest', 'writer', token))
local last, ends = last_holder(holders)
local is_held = ends > now
local is_written = is_held and last == writer

-- Whether this token has a live lease.
local function holds(one)
  return tonumber(redis.call('ZSCORE', holders, one) or 0) > now
end

local function start_lease()
  redis.call('ZADD', holders, now + lease * 1000, token)
  keep_grants(holders, grants, lease, not last)
end

if fence and holds(token) then
  allow_writes_when_full(grants)
  start_lease() -- the caller counts it from its latest request
  return tonumber(fence)
end
if other_token ~= '' and holds(other_token) then
  return nil
end

-- Removes dead clients from the queue. Returns the caller's ticket, whether a client is before it that it must wait for,
-- and the highest ticket that the gate is open for.
-- rare
local function read_queue()
  local admitted = admitted_ticket(gate)
  allow_writes_when_full(grants)
  limit_waiters(alive, now, patience)
  remove_dead_clients(readers, writers, alive, now)
  local ticket = tonumber(redis.call('ZSCORE', queue, token) or nil)
  local first = tonumber(redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES')[2] or math.huge)
  if writes then
    first = math.min(first, redis.call('ZRANGE', readers, 0, 0, 'WITHSCORES')[2] or math.huge)
  end
  return ticket, first < (ticket or math.huge), admitted
end

local has_queue, ticket, must_wait, admitted = redis.call('ZCARD', alive) > 0, nil, false, nil
if has_queue then
  ticket, must_wait, admitted = read_queue()
end

-- rare
local function leave_queue()
  redis.call('ZREM', queue, token)
  redis.call('ZREM', alive, token)
  if not is_written then
    admit_next(readers, writers, gate, not is_held, admitted)
  end
end

-- Queues the caller; returns what the script returns.
-- rare
local function wait_in_queue()
  if not ticket and redis.call('ZCARD', alive) >= max_waiting then
    return -2
  end
  allow_writes_when_full(grants)
  redis.call('ZADD', alive, now + patience * 1000, token)
  local gone = keep_waiters(alive, now + patience * 1000, {unpack(ARGV, 8)})
  if not ticket then
    ticket = now
    for _, set in ipairs({readers, writers}) do
      ticket = math.max(ticket, (redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')[2] or 0) + 1)
    end
    redis.call('ZADD', queue, digits(ticket), token)
  end
  for _, set in ipairs({alive, readers, writers}) do
    redis.call('PEXPIRE', set, patience + 1)
  end
  admitted = admitted or admitted_ticket(gate)
  -- The gate was opened for this caller before the clock was set back, and stays open until the entry is removed.
  if admitted >= ticket then
    redis.call('DEL', gate)
    admitted = 0
  end
  if not is_written then
    admit_next(readers, writers, gate, not is_held, admitted)
  end

  -- Poll again when all leases have ended, or when the next client of the queue, which may be ahead, counts as dead.
  local wake_at = tonumber(redis.call('ZRANGE', alive, 0, 0, 'WITHSCORES')[2])
  wake_at = is_held and math.min(wake_at, ends) or wake_at
  return {digits(ticket), math.max(math.ceil((wake_at - now) / 1000), 1), gone}
end

-- Removes up to 500 tokens each whose leases have ended, and that were released before the latest ones; returns the
-- number of holders.
-- rare
local function remove_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, 0, digits(now), 'LIMIT', 0, 500)
  if #ended > 0 then
    redis.call('ZREM', holders, unpack(ended))
    redis.call('HDEL', grants, unpack(ended))
  end
  local released = redis.call('ZCOUNT', holders, '-inf', '(0')
  if released > KEPT then
    redis.call('ZREMRANGEBYRANK', holders, 0, math.min(released - KEPT, 500) - 1)
  end
  return count_active(holders, now)
end

-- Gives the lock to the caller; returns a fence greater than all earlier ones: the time, unless the clock was set back.
local function grant()
  if ends > 0 and not is_held then
    -- The ended leases, all that are left, must not be valid again when the clock is set back. For 10,000, the maximum,
    -- that takes about 2 ms.
    redis.call('ZREMRANGEBYSCORE', holders, 0, digits(now))
    redis.call('UNLINK', grants)
  end
  local drawn = math.max(now, (latest or 0) + 1)
  local text = digits(drawn)
  if writes then
    redis.call('HSET', grants, 'latest', text, token, text, 'writer', token)
  else
    redis.call('HSET', grants, 'latest', text, token, text)
  end
  start_lease()
  is_held, is_written = true, writes
  return drawn
end

if must_wait or is_written or writes and is_held then
  if max_waiting > 0 then
    return wait_in_queue()
  elseif has_queue then
    leave_queue()
  end
  return 0
end
local count = redis.call('ZCARD', holders)
if count >= 2 * KEPT then
  count = remove_ended()
end
local reply = not writes and count >= max_readers and -1 or grant()
if has_queue then
  leave_queue()
end
return reply
