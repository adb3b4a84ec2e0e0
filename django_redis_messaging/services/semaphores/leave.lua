-- Removes an interrupted caller from the queue, and releases the permit that it may have been granted.
--
-- uses _semaphores.lua
-- uses common/_time.lua
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 token of the caller
-- Returns nothing
local semaphore = semaphore_at(KEYS)
local token = ARGV[1]
local now = microseconds()
local permits, admitted = redis.call('GET', semaphore.limit) or 0, admitted_ticket(semaphore.gate)
remove_dead_waiters(semaphore.line, semaphore.waiting, now)
redis.call('ZREM', semaphore.holders, token)
redis.call('ZREM', semaphore.line, token)
redis.call('ZREM', semaphore.waiting, token)
open_gate(semaphore.line, semaphore.gate, permits - count_active(semaphore.holders, now), admitted)
