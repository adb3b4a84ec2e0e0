-- The queue of clients that wait for a lock, ordered by ticket. A waiting client polls; its ticket expires when it
-- stops. To wake a client, a script adds an entry to the stream at the ticket's place in the ring of wake-up keys.
-- Reading a stream removes nothing, so no other client can consume the wake-up.
--
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
