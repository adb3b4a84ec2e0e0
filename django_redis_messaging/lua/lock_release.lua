-- Gives a lock back: to the first who waits, or to all.
--
-- uses _microseconds.lua
-- uses _locks.lua
--
-- KEYS  1 lock
-- KEYS  2 released
-- KEYS  3 line
-- KEYS  4 seen
-- KEYS  5… the ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 how long a release is remembered: ms
-- Returns 1, also to a repeat; or 0 where the lock is not the caller's, who leaves the line then
local lock, released, line, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token = ARGV[1]
if redis.call('GET', lock) ~= token then
  left(line, seen, token)
  return redis.call('GET', released) == token and 1 or 0
end
local us, first, ticket
if redis.call('EXISTS', line) == 1 then
  us = microseconds()
  first, ticket = next_of(line, seen, math.floor(us / 1000))
end
-- Redis refuses no RENAME for want of memory, nor what a script writes after it.
redis.call('RENAME', lock, released)
redis.call('PEXPIRE', released, ARGV[2])
if first then
  handed_over(KEYS, 5, first, ticket, us)
end
return 1
