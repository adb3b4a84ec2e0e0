-- Sets the number of permits, and wakes the waiting clients that may take one now.
--
-- uses _semaphores.lua
-- uses common/_time.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 queue
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 new limit
-- ARGV  2 how long the limit is kept: ms
-- Returns nothing
local holders, limit, queue, waiting, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local permits, limit_ttl = ARGV[1], ARGV[2]
local now, has_queue, admitted = microseconds(), redis.call('ZCARD', queue) > 0, nil
local count = count_active(holders, now)
if has_queue then
  admitted = admitted_ticket(gate)
  remove_dead_waiters(queue, waiting, now)
end
-- GETEX comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('GETEX', limit, 'PX', limit_ttl)
redis.call('SET', limit, permits, 'PX', limit_ttl)
if has_queue then
  open_gate(queue, gate, permits - count, admitted)
end
