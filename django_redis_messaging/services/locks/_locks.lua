-- The queue of clients that wait for a lock, ordered by ticket. A waiting client polls; its ticket expires when it
-- stops. To wake a client, a script adds an entry to the stream at the ticket's place in the ring of wake-up keys.
-- Reading a stream removes nothing, so no other client can consume the wake-up.
--
-- uses common/_polls.lua
-- uses common/_time.lua

local GRANT = 1000 -- ms within which a client that was handed the lock must confirm it
local TICKET = 2000 -- ms after the client's last poll at which its ticket expires
local MAX_TICKETS = 1000 -- tickets that one script examines
local DAY = 86400000 -- ms

-- The keys of a lock, in the order of all its scripts. Those that wake clients have the ring of wake-up keys behind them;
-- they name the keys themselves, since the table would take 2 % of their time.
local RING = 6 -- place of the first wake-up key
local function lock_at(keys)
  return {key = keys[1], fence = keys[2], line = keys[3], seen = keys[4], releases = keys[5]}
end

-- The place of a ticket in the ring, from 0.
local function place_of(keys, ticket)
  return ticket % (#keys - RING + 1)
end

-- How long the fence is kept when a lease of this length (ms; 0: without an end) begins: ms.
local function fence_ttl(lease)
  return lease == 0 and 30 * DAY or math.max(DAY, 2 * lease)
end

local function leave_queue(line, seen, token)
  redis.call('ZREM', line, token)
  redis.call('ZREM', seen, token)
end

-- Whether a client in the queue has polled lately, so that its ticket has not expired.
local function has_polled(seen, token, now)
  local polled = redis.call('ZSCORE', seen, token)
  return polled and tonumber(polled) > now - TICKET
end

-- Removes the first client that still waits from the queue; returns its token and ticket.
local function pop_waiter(line, seen, now)
  redis.call('ZCARD', seen) -- fails, before anything is written, if the key has another type
  for _ = 1, MAX_TICKETS do
    local first = redis.call('ZPOPMIN', line)
    if not first[1] then
      return
    end
    local is_alive = has_polled(seen, first[1], now)
    redis.call('ZREM', seen, first[1])
    if is_alive then
      return first[1], tonumber(first[2])
    end
  end
end

-- Gives the lock to the first client that still waits, and wakes it; returns its token, or nil if there is none. Redis
-- never rejects ZPOPMIN at maxmemory, nor the writes after it in the script.
-- rare
local function hand_over(keys)
  local us = microseconds()
  local token, ticket = pop_waiter(keys[3], keys[4], math.floor(us / 1000))
  if token then
    local wake = keys[RING + place_of(keys, ticket)]
    redis.call('SET', keys[1], token, 'PX', GRANT)
    redis.call('DEL', wake)
    redis.call('XADD', wake, digits(us) .. '-0', 't', token)
    redis.call('PEXPIRE', wake, 2 * TICKET)
  end
  return token
end

-- Frees a lock, or hands it over to the first client that waits. DEL or a hand-over comes first: Redis never rejects them
-- at maxmemory, nor the writes after them in the script.
local function free(keys)
  if redis.call('EXISTS', keys[3]) == 0 or not hand_over(keys) then
    redis.call('DEL', keys[1])
  end
end

-- Stores, with the caller's token, and returns a fence greater than all earlier ones: `us`, unless the clock was set back.
local function draw_fence(keys, caller, us)
  local record = digits(us) .. ' - ' .. caller.token
  local previous = redis.pcall('SET', keys[2], record, 'PX', fence_ttl(tonumber(caller.lease)), 'GET')
  if type(previous) == 'table' then -- a key of another type: nothing is left behind
    redis.call('DEL', keys[1])
    return previous
  end
  local latest = tonumber(string.match(previous or '', '^%d+') or 0)
  return latest < us and us or draw_fence(keys, caller, latest + 1)
end

-- Sets the lock if no client holds it; returns whether it did.
local function set_lock(key, caller)
  if caller.lease ~= '0' then
    return redis.call('SET', key, caller.token, 'PX', caller.lease, 'NX')
  end
  return redis.call('SET', key, caller.token, 'NX')
end

-- Queues the caller, or lets it leave the queue if it doesn't wait. Returns what `acquire` returns.
-- rare
local function wait_in_queue(keys, caller, us, holder, owner)
  local line, seen, token = keys[3], keys[4], caller.token
  if caller.max_waiting == 0 then
    leave_queue(line, seen, token)
    return 0
  end
  local ticket = tonumber(redis.call('ZSCORE', line, token) or nil)
  if not ticket then
    local waiting = redis.call('ZCARD', line)
    if waiting >= caller.max_waiting then
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
  local gone = keep_waiters(seen, now, caller.others)

  -- A holder of this app wakes the next client. A lock of another program (redis-py) is released without a wake-up, so
  -- the first client in the queue polls it more often.
  local wait = TICKET / 4
  if holder ~= owner and redis.call('ZRANK', line, token) == 0 then
    wait = wait / 5
  end
  local remaining = redis.call('PTTL', keys[1])
  if remaining >= 0 then
    wait = math.min(wait, remaining + 1)
  end
  return {place_of(keys, ticket), wait, us, gone}
end

-- Acquires a lock that is free or was handed over to the caller; otherwise queues the caller, if it waits. The caller is
-- a table of what the arguments of acquire.lua say; returns what that script returns.
local function acquire(keys, caller)
  local key, line, token, lease = keys[1], keys[3], caller.token, caller.lease
  if not caller.has_waited and redis.call('EXISTS', line) == 0 and set_lock(key, caller) then
    return draw_fence(keys, caller, microseconds())
  end

  local us = microseconds()
  local latest, owner = string.match(redis.call('GET', keys[2]) or '', '^(%d+) %S+ (.*)$')
  -- A lock that is free is handed over to the first client in the queue, possibly to the caller.
  local holder = redis.call('GET', key) or hand_over(keys)
  if holder == token then
    if lease ~= '0' then
      redis.call('PEXPIRE', key, lease)
    else
      redis.call('PERSIST', key)
    end
    -- A repeat whose first reply was lost returns the fence it drew then; a client that was handed the lock draws one.
    return owner == token and tonumber(latest) or draw_fence(keys, caller, us)
  end
  if caller.other_token ~= '' and holder == caller.other_token then
    return nil
  end
  -- Without a holder, the queue is empty, or so many dead clients are at its head that a later poll must remove the rest.
  if not holder and redis.call('EXISTS', line) == 0 then
    set_lock(key, caller)
    return draw_fence(keys, caller, us)
  end
  return wait_in_queue(keys, caller, us, holder, owner)
end
