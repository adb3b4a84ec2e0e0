-- Acquires a lock that is free or was handed over to the caller; otherwise queues the caller, if it waits.
--
-- uses _locks.lua
-- uses common/_polls.lua
-- uses common/_time.lua
--
-- KEYS  1 key
-- KEYS  2 fence
-- KEYS  3 line
-- KEYS  4 seen
-- KEYS  5 releases
-- KEYS  6… ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 lease: ms; 0 for none
-- ARGV  3 maximum length of the queue; 0: the caller doesn't wait, and leaves the queue
-- ARGV  4 1 if the caller has waited already, or may acquire it although the server is out of memory; else 0
-- ARGV  5 another token of the caller, with which it may hold the lock already; or empty
-- ARGV  6… up to 499 tokens of other waiting clients to keep in the queue
-- Returns the fence; 0 if the caller neither has the lock nor waits; nil if it holds the lock with its other token; the
-- length of the queue, negated, if it is full; or, if the caller waits, {place in the ring, ms until the next poll,
-- server time in µs, those of the other clients that are not in the queue}
local key, fence, line, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, lease, max_waiting, has_waited = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] ~= '0'
local other_token = ARGV[5]

-- Stores, with the token, and returns a fence greater than all earlier ones: `us`, unless the clock was set back.
local function draw_fence(us)
  local previous = redis.pcall('SET', fence, digits(us) .. ' - ' .. token, 'PX', fence_ttl(tonumber(lease)), 'GET')
  if type(previous) == 'table' then -- a key of another type: nothing is left behind
    redis.call('DEL', key)
    return previous
  end
  local latest = tonumber(string.match(previous or '', '^%d+') or 0)
  return latest < us and us or draw_fence(latest + 1)
end

-- Sets the lock if no client holds it; returns whether it did.
local function set_lock()
  if lease ~= '0' then
    return redis.call('SET', key, token, 'PX', lease, 'NX')
  end
  return redis.call('SET', key, token, 'NX')
end

-- Queues the caller, or lets it leave the queue if it doesn't wait. Returns what the script returns.
-- rare
local function wait_in_queue(us, holder, owner)
  if max_waiting == 0 then
    leave_queue(line, seen, token)
    return 0
  end
  local ticket = tonumber(redis.call('ZSCORE', line, token) or nil)
  if not ticket then
    local waiting = redis.call('ZCARD', line)
    if waiting >= max_waiting then
      return -waiting
    end
    ticket = tonumber(redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')[2] or 0) + 1
  end
  local now = math.floor(us / 1000)
  -- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it, so waiting clients keep waiting.
  local updated = redis.call('PEXPIRE', line, 2 * TICKET)
  redis.call('ZADD', seen, now, token)
  redis.call('ZADD', line, ticket, token)
  if updated == 0 then -- the queue did not exist
    redis.call('PEXPIRE', line, 2 * TICKET)
  end
  redis.call('PEXPIRE', seen, 2 * TICKET)
  local gone = keep_waiters(seen, now, {unpack(ARGV, 6)})

  -- A holder of this app wakes the next client. A lock of another program (redis-py) is released without a wake-up, so
  -- the first client in the queue polls it more often.
  local wait = TICKET / 4
  if holder ~= owner and redis.call('ZRANK', line, token) == 0 then
    wait = wait / 5
  end
  local remaining = redis.call('PTTL', key)
  if remaining >= 0 then
    wait = math.min(wait, remaining + 1)
  end
  return {place_of(KEYS, ticket), wait, us, gone}
end

if not has_waited and redis.call('EXISTS', line) == 0 and set_lock() then
  return draw_fence(microseconds())
end

local us = microseconds()
local latest, owner = string.match(redis.call('GET', fence) or '', '^(%d+) %S+ (.*)$')
-- A lock that is free is handed over to the first client in the queue, possibly to the caller.
local holder = redis.call('GET', key) or hand_over(KEYS)
if holder == token then
  if lease ~= '0' then
    redis.call('PEXPIRE', key, lease)
  else
    redis.call('PERSIST', key)
  end
  -- A repeat whose first reply was lost returns the fence it drew then; a client that was handed the lock draws one.
  return owner == token and tonumber(latest) or draw_fence(us)
end
if other_token ~= '' and holder == other_token then
  return nil
end
-- Without a holder, the queue is empty, or so many dead clients are at its head that a later poll must remove the rest.
if not holder and redis.call('EXISTS', line) == 0 then
  set_lock()
  return draw_fence(us)
end
return wait_in_queue(us, holder, owner)
