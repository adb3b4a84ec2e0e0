-- Takes a permit away from its holder, and wakes the next waiting client. Unlike a release, it is not remembered: the
-- holder's own release reports a loss.
--
-- uses _semaphores.lua
-- uses common/_polls.lua
-- uses common/_time.lua
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 token of the permit
-- Returns 1, or 0 if the token holds no permit
local semaphore = semaphore_at(KEYS)
local token, now = ARGV[1], microseconds()
if tonumber(redis.call('ZSCORE', semaphore.holders, token) or 0) <= now then
  return 0
end
local has_queue, permits, admitted = redis.call('ZCARD', semaphore.line) > 0, nil, nil
if has_queue then
  permits, admitted = redis.call('GET', semaphore.limit) or 0, admitted_ticket(semaphore.gate)
end
redis.call('ZREM', semaphore.holders, token)
if has_queue then
  remove_dead_waiters(semaphore.line, semaphore.waiting, now)
  open_gate(semaphore.line, semaphore.gate, permits - count_active(semaphore.holders, now), admitted)
end
return 1
