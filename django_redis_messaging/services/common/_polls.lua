-- Clients that wait in a queue, and poll. A client that polls also keeps other clients of its process there.
--
-- uses common/_time.lua

-- How many leases of a set last, or how many clients wait: both have the time of expiry (µs) as the score.
local function count_active(set, now)
  return redis.call('ZCOUNT', set, now + 1, '+inf')
end

-- Lets no client count as alive for longer than `ttl` (ms) from now, as many would after the clock was set back.
-- Callers have written before.
local function limit_waiters(waiting, now, ttl)
  local latest = digits(now + ttl * 1000)
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', waiting, '(' .. latest, '+inf', 'LIMIT', 0, 500)) do
    redis.call('ZADD', waiting, latest, token)
  end
end

-- The highest ticket that the gate is open for; 0 if it is closed.
local function admitted_ticket(gate)
  local newest = redis.call('XREVRANGE', gate, '+', '-', 'COUNT', 1)[1]
  return newest and tonumber(string.match(newest[1], '^%d+')) or 0
end

-- Sets the score of those tokens that are in the set; returns the others: these clients must poll themselves. Callers
-- have written before.
local function keep_waiters(set, score, tokens)
  local kept, gone = {}, {}
  if #tokens == 0 then
    return gone
  end
  for at, found in ipairs(redis.call('ZMSCORE', set, unpack(tokens))) do
    if found then
      kept[#kept + 1], kept[#kept + 2] = score, tokens[at]
    else
      gone[#gone + 1] = tokens[at]
    end
  end
  if #kept > 0 then
    redis.call('ZADD', set, unpack(kept))
  end
  return gone
end
