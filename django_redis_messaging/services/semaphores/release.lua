-- Releases a permit, and wakes the next waiting client. A caller without a permit leaves the queue.
--
-- uses _semaphores.lua
-- uses common/_polls.lua
-- uses common/_time.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 line
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 token of the permit
-- Returns 1, also to a repeat; or 0 if the caller holds no permit: its lease had expired, or it was in the queue
local holders, limit, line, waiting, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token = ARGV[1]
local now, expires = microseconds(), tonumber(redis.call('ZSCORE', holders, token) or 0)
if expires < 0 then -- a repeat: it has been released
  return 1
end
local has_queue, permits, admitted = redis.call('ZCARD', line) > 0, nil, nil
if has_queue then
  permits, admitted = redis.call('GET', limit) or 0, admitted_ticket(gate)
  remove_dead_waiters(line, waiting, now)
end
if expires > now then
  if type(redis.pcall('ZADD', holders, now + RELEASED, token)) == 'table' then
    -- Redis rejects ZADD at maxmemory, but not after a removal.
    redis.call('ZREM', holders, token)
    redis.call('ZADD', holders, now + RELEASED, token)
  end
else
  redis.call('ZREM', holders, token)
  if has_queue then
    redis.call('ZREM', line, token)
    redis.call('ZREM', waiting, token)
  end
end
if has_queue then
  open_gate(line, gate, permits - count_active(holders, now), admitted)
end
return expires > now and 1 or 0
