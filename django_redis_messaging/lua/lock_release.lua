-- Releases a lock, and hands it over to the first waiting client, if any.
--
-- uses _locks.lua
-- uses _time.lua
--
-- KEYS  1 lock
-- KEYS  2 released
-- KEYS  3 queue
-- KEYS  4 seen
-- KEYS  5… ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 how long the release is remembered: ms
-- Returns 1, also to a repeat; or 0 if the caller doesn't hold the lock: it leaves the queue then
local lock, released, queue, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, memory = ARGV[1], ARGV[2]
if redis.call('GET', lock) ~= token then
  leave_queue(queue, seen, token)
  return redis.call('GET', released) == token and 1 or 0
end
local us, first, ticket
if redis.call('EXISTS', queue) == 1 then
  us = microseconds()
  first, ticket = pop_waiter(queue, seen, math.floor(us / 1000))
end
-- Redis never rejects RENAME at maxmemory, nor the writes after it in the script.
redis.call('RENAME', lock, released)
redis.call('PEXPIRE', released, memory)
if first then
  hand_over(KEYS, 5, first, ticket, us)
end
return 1
