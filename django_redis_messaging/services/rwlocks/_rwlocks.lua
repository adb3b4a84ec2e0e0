-- Read-write locks. `holders` maps the token of each holder to the end of its lease (µs); all with a live lease read, or
-- one writes. `grants` maps it to its fence, and the fields `latest` and `writer` to the latest fence and to the token of
-- the latest writer. The waiting clients are in `readers` or `writers`, by ticket: the time of arrival (µs), or the
-- previous ticket plus 1. A reader may proceed when no writer holds the lock or waits before it, a writer when nobody
-- does. The id of the newest entry in the gate, a stream, is the highest ticket that may proceed, and each client waits
-- for an entry with its own ticket or a higher one.
--
--     holders  a b          both read
--     readers  c:1 d:2 f:4  c and d may read, too
--     writers  e:3          e may write when a, b, c and d have released the lock; f may read after it
--     gate     2
--
-- Released tokens stay in `holders` for a while, with a negative score: a repeated release finds its token there. A
-- score of 0 is a lease that had ended before its release.
--
-- uses common/_time.lua

-- The keys of a read-write lock, in the order of all its scripts. To acquire and release it, they name the keys
-- themselves, since the table would take 2 % of their time.
local function rwlock_at(keys)
  return {
    holders = keys[1], grants = keys[2], readers = keys[3], writers = keys[4], alive = keys[5], gate = keys[6],
  }
end

local DAY = 86400000 -- ms

-- The holder whose lease ends last, and its end (µs); it has released the lock if that is negative.
local function last_holder(holders)
  local found = redis.call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')
  return found[1], tonumber(found[2] or 0)
end

-- Keeps holders and fences for a day longer than a lease that begins now (ms); `is_new`: there were no holders.
local function keep_grants(holders, grants, lease, is_new)
  if is_new or redis.call('PTTL', grants) <= lease + DAY then
    redis.call('PEXPIRE', holders, 2 * (lease + DAY))
    redis.call('PEXPIRE', grants, 2 * (lease + DAY))
  end
end

-- Removes the clients that have not polled in time from the queue.
local function remove_dead_clients(readers, writers, alive, now)
  local dead = redis.call('ZRANGEBYSCORE', alive, '-inf', digits(now), 'LIMIT', 0, 500)
  if #dead > 0 then
    redis.call('ZREM', readers, unpack(dead))
    redis.call('ZREM', writers, unpack(dead))
    redis.call('ZREM', alive, unpack(dead))
  end
end

-- Opens the gate for the clients that may proceed while no writer holds the lock: the readers before the first waiting
-- writer; without any, that writer if the lock is free. `admitted` is the highest ticket that the gate is open for. The
-- entry's TTL is longer than any client waits between two polls.
local function admit_next(readers, writers, gate, is_free, admitted)
  local writer = redis.call('ZRANGE', writers, 0, 0, 'WITHSCORES')[2]
  local before = writer and '(' .. writer or '+inf'
  local reader = redis.call('ZREVRANGEBYSCORE', readers, before, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local ticket = reader or is_free and writer
  if ticket and tonumber(ticket) > admitted then
    redis.call('XADD', gate, 'MAXLEN', 1, ticket .. '-0', '', '')
    redis.call('PEXPIRE', gate, 60000)
  end
end
