-- Semaphores. `holders` maps the token of each permit to the end of its lease (µs). `line`, the queue, maps the token of
-- each waiting client to its ticket: the time of its arrival (µs), or the previous ticket plus 1. The first clients in
-- the queue, one for each free permit, may take one: the id of the newest entry in the gate, a stream, is the
-- highest of their tickets, and each client waits for an entry with its own ticket or a higher one.
--
--     holders  a b          limit 3, so 1 is free
--     line     c d e        c may take it: it is woken and calls semaphores/acquire
--     gate     ticket of c
--
-- Released permits stay in `holders` for a while, with a negative score. A release that is repeated because its
-- reply was lost finds its permit there.
--
-- uses common/_time.lua

-- The keys of a semaphore, in the order of all its scripts. To acquire and release it, they name the keys themselves,
-- since the table would take 2 % of their time.
local function semaphore_at(keys)
  return {holders = keys[1], limit = keys[2], line = keys[3], waiting = keys[4], gate = keys[5]}
end

local RELEASED = -2 ^ 52 -- added to the time of a release (µs)
local RELEASE_TTL = 60000 -- ms for which a release is remembered at least, unless 1000 others follow it

-- Keeps the permits for longer than a lease that begins now (ms), and a release for long enough to be repeated.
local function keep_permits(holders, lease)
  if redis.call('PTTL', holders) <= lease + RELEASE_TTL then
    redis.call('PEXPIRE', holders, 2 * lease + RELEASE_TTL + 1)
  end
end

-- Removes the clients that have not polled in time from the queue.
local function remove_dead_waiters(line, waiting, now)
  local dead = redis.call('ZRANGEBYSCORE', waiting, '-inf', digits(now), 'LIMIT', 0, 500)
  if #dead > 0 then
    redis.call('ZREM', line, unpack(dead))
    redis.call('ZREM', waiting, unpack(dead))
  end
end

-- Opens the gate for the first `free` clients in the queue, unless it is open for them: `admitted` is the highest
-- ticket it is open for. The entry's TTL is longer than any client waits between two polls.
local function open_gate(line, gate, free, admitted)
  if free < 1 then
    return
  end
  local last = redis.call('ZRANGE', line, free - 1, free - 1, 'WITHSCORES')
  if not last[2] then
    last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
  end
  if last[2] and tonumber(last[2]) > admitted then
    redis.call('XADD', gate, 'MAXLEN', 1, last[2] .. '-0', '', '')
    redis.call('PEXPIRE', gate, 60000)
  end
end
