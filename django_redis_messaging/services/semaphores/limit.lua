-- Sets the number of permits, and wakes the waiting clients that may take one now.
--
-- uses _semaphores.lua
-- uses common/_polls.lua
-- uses common/_time.lua
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 new limit
-- ARGV  2 how long the limit is kept: ms
-- Returns nothing
local semaphore = semaphore_at(KEYS)
local permits, limit_ttl = ARGV[1], ARGV[2]
local now, has_queue, admitted = microseconds(), redis.call('ZCARD', semaphore.line) > 0, nil
local count = count_active(semaphore.holders, now)
if has_queue then
  admitted = admitted_ticket(semaphore.gate)
  remove_dead_waiters(semaphore.line, semaphore.waiting, now)
end
-- GETEX comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('GETEX', semaphore.limit, 'PX', limit_ttl)
redis.call('SET', semaphore.limit, permits, 'PX', limit_ttl)
if has_queue then
  open_gate(semaphore.line, semaphore.gate, permits - count, admitted)
end
