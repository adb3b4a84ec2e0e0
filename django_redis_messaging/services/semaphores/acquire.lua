-- Takes a permit if one is free for the caller, considering the clients ahead of it; otherwise queues the caller.
--
-- uses _semaphores.lua
-- uses common/_polls.lua
-- uses common/_time.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 line
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 token of the caller, the same for all its polls; one that holds a permit is a repeat after a lost reply
-- ARGV  2 lease: ms
-- ARGV  3 limit, used if none is stored
-- ARGV  4 how long the limit is kept: ms
-- ARGV  5 how long a client stays in the queue without polling: ms
-- ARGV  6 1 if the caller waits, 0 if it leaves the queue
-- ARGV  7… up to 499 tokens of other waiting clients to keep in the queue
-- Returns 1 if a permit was granted, 0 if not, or, if the caller waits, {its ticket, ms until it must poll again if
-- nothing wakes it before, those of the other clients that are not in the queue}
local holders, limit, line, waiting, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, lease, default_limit, limit_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local patience, waits = tonumber(ARGV[5]), ARGV[6] ~= '0'
local now = microseconds()
local count = count_active(holders, now)
-- GETEX comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
local stored = redis.call('GETEX', limit, 'PX', limit_ttl)
local free = tonumber(stored or default_limit) - count
-- Keep at most 1000 permits that expired or were released.
redis.call('ZREMRANGEBYRANK', holders, 0, -count - 1001)

-- Removes dead clients from the queue. Returns how many clients are ahead of the caller, the caller's ticket, and the
-- highest ticket that the gate is open for.
-- rare
local function read_queue()
  limit_waiters(waiting, now, patience)
  remove_dead_waiters(line, waiting, now)
  local ahead = redis.call('ZRANK', line, token)
  return ahead or redis.call('ZCARD', line), redis.call('ZSCORE', line, token), admitted_ticket(gate)
end

local ahead, ticket, admitted = redis.call('ZCARD', line), nil, nil
if ahead > 0 then
  ahead, ticket, admitted = read_queue()
end

-- rare
local function leave_queue()
  redis.call('ZREM', line, token)
  redis.call('ZREM', waiting, token)
  open_gate(line, gate, free, admitted)
end

local function start_lease()
  redis.call('ZADD', holders, now + lease * 1000, token)
  keep_permits(holders, lease)
end

-- Queues the caller; returns what the script returns.
-- rare
local function wait_in_queue()
  admitted = admitted or admitted_ticket(gate)
  redis.call('ZADD', waiting, now + patience * 1000, token)
  local gone = keep_waiters(waiting, now + patience * 1000, {unpack(ARGV, 7)})
  redis.call('PEXPIRE', waiting, patience + 1)
  if not ticket then
    local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
    ticket = digits(math.max(now, (tonumber(last) or 0) + 1))
    redis.call('ZADD', line, ticket, token)
  end
  redis.call('PEXPIRE', line, patience + 1)
  -- The gate was opened for this caller when the limit was higher, and stays open until the entry is removed.
  if admitted >= tonumber(ticket) then
    redis.call('DEL', gate)
    admitted = 0
  end
  open_gate(line, gate, free, admitted)

  -- Poll again when enough leases have expired, or when the next client of the queue, which may be ahead, counts as
  -- dead.
  local wake_at = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  local freed = redis.call('ZRANGEBYSCORE', holders, now + 1, '+inf', 'WITHSCORES', 'LIMIT', ahead - free, 1)
  wake_at = math.min(tonumber(wake_at), tonumber(freed[2] or wake_at))
  return {ticket, math.max(math.ceil((wake_at - now) / 1000), 1), gone}
end

if not stored then
  redis.call('SET', limit, default_limit, 'PX', limit_ttl)
end
if ahead < free then
  start_lease()
  if admitted then
    free = free - 1
    leave_queue()
  end
  return 1
end
if tonumber(redis.call('ZSCORE', holders, token) or 0) > now then
  start_lease() -- the caller counts it from its latest request
  return 1
end
if waits then
  return wait_in_queue()
elseif admitted then
  leave_queue()
end
return 0
