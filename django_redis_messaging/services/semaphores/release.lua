-- Releases a permit, and wakes the next waiting client.
--
-- uses _semaphores.lua
-- uses common/_time.lua
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 token of the permit
-- Returns 1, also to a repeat; or 0 if the lease had expired
local semaphore = semaphore_at(KEYS)
local token = ARGV[1]
local now, expires = microseconds(), tonumber(redis.call('ZSCORE', semaphore.holders, token) or 0)
if expires < 0 then -- a repeat: it has been released
  return 1
end
local has_queue, permits, admitted = redis.call('ZCARD', semaphore.line) > 0, nil, nil
if has_queue then
  permits, admitted = redis.call('GET', semaphore.limit) or 0, admitted_ticket(semaphore.gate)
  remove_dead_waiters(semaphore.line, semaphore.waiting, now)
end
-- Redis never rejects a removal at maxmemory, nor the writes after it in the script.
redis.call('ZREM', semaphore.holders, token)
if expires > now then
  redis.call('ZADD', semaphore.holders, digits(now + RELEASED), token)
  if redis.call('PTTL', semaphore.holders) < RELEASE_TTL then
    redis.call('PEXPIRE', semaphore.holders, RELEASE_TTL)
  end
end
if has_queue then
  open_gate(semaphore.line, semaphore.gate, permits - count_active(semaphore.holders, now), admitted)
end
return expires > now and 1 or 0
