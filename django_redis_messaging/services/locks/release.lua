-- Releases a lock, and hands it over to the first waiting client, if any.
--
-- uses _locks.lua
--
-- KEYS  1 key
-- KEYS  2 fence
-- KEYS  3 line
-- KEYS  4 seen
-- KEYS  5 releases
-- KEYS  6… ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 how long the release is remembered: ms; 0: not at all, so the holder's own release reports a loss
-- Returns 1, also to a repeat; or 0 if the caller doesn't hold the lock: it leaves the queue then
local key, line, seen, releases = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local token, memory = ARGV[1], ARGV[2]
local REMEMBERED = 500 -- releases that are remembered at least

if redis.call('GET', key) ~= token then
  leave_queue(line, seen, token)
  return redis.call('LPOS', releases, token) and 1 or 0
end
local remembered = redis.call('LLEN', releases) -- fails, before anything is written, if the key has another type
free(KEYS)
if memory ~= '0' then
  redis.call('LPUSH', releases, token)
  if remembered >= 2 * REMEMBERED then
    redis.call('LTRIM', releases, 0, REMEMBERED - 1)
  end
  redis.call('PEXPIRE', releases, memory)
end
return 1
