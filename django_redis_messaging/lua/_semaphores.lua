-- Semaphores. Whoever holds a permit is in `holders`, by the end of its lease; whoever waits for one in `line`,
-- by ticket: the moment of coming, or just above the one before. The first of the line may go, as many as
-- permits are free: the gate shows the last of their tickets, and who waits listens there for his own.
--
--     holders  a b          limit 3, so 1 is free
--     line     c d e        c may go: it is woken, looks, and takes it
--     gate     ticket of c
--
-- Permits that were released stay for a while, with a score below zero: a release that is repeated, since its
-- reply was lost, finds that it has been done.

-- What is added to the moment (µs) of a release.
local RELEASED = -2 ^ 52
local REMEMBERED = 60000 -- ms for which a release is remembered at least, if no 1000 others follow

-- How many hold a permit.
local function held(holders, now)
  return redis.call('ZCOUNT', holders, '(' .. digits(now), '+inf')
end

-- Removes from the line those who have not looked in time.
local function swept(line, waiting, now)
  local dead = redis.call('ZRANGEBYSCORE', waiting, '-inf', digits(now), 'LIMIT', 0, 500)
  if #dead > 0 then
    redis.call('ZREM', line, unpack(dead))
    redis.call('ZREM', waiting, unpack(dead))
  end
end

-- The highest ticket that the gate was opened for; 0 where it is shut.
local function opened_for(gate)
  local newest = redis.call('XREVRANGE', gate, '+', '-', 'COUNT', 1)[1]
  return newest and tonumber(string.match(newest[1], '^%d+')) or 0
end

-- Opens the gate for the first `free` of the line; it was opened for the ticket `shown` before. A minute is
-- longer than anybody waits before looking.
local function opened(line, gate, free, shown)
  if free < 1 then
    return
  end
  local last = redis.call('ZRANGE', line, free - 1, free - 1, 'WITHSCORES')
  if not last[2] then
    last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
  end
  if last[2] and tonumber(last[2]) > shown then
    redis.call('XADD', gate, 'MAXLEN', 1, last[2] .. '-0', '', '')
    redis.call('PEXPIRE', gate, 60000)
  end
end
