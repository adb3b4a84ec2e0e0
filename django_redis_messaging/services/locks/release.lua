-- Releases a lock, and hands it over to the first waiting client, if any.
--
-- uses _locks.lua
-- uses common/_time.lua
--
-- KEYS  1 lock
-- KEYS  2 released
-- KEYS  3 queue
-- KEYS  4 seen
-- KEYS  5… ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 how long the release is remembered: ms; 0: not at all, so the holder's own release reports a loss
-- Returns 1, also to a repeat; or 0 if the caller doesn't hold the lock: it leaves the queue then
local lock, released, queue, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, memory = ARGV[1], ARGV[2]
local REMEMBERED = 500 -- releases that are remembered at least

if redis.call('GET', lock) ~= token then
  leave_queue(queue, seen, token)
  return redis.call('LPOS', released, token) and 1 or 0
end
local remembered = redis.call('LLEN', released) -- fails, before anything is written, if the key has another type
local us, first, ticket
if redis.call('EXISTS', queue) == 1 then
  us = microseconds()
  first, ticket = pop_waiter(queue, seen, math.floor(us / 1000))
end
-- DEL comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('DEL', lock)
if memory ~= '0' then
  redis.call('LPUSH', released, token)
  if remembered >= 2 * REMEMBERED then
    redis.call('LTRIM', released, 0, REMEMBERED - 1)
  end
  redis.call('PEXPIRE', released, memory)
end
if first then
  hand_over(KEYS, 5, first, ticket, us)
end
return 1
