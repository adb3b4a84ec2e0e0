-- Removes an interrupted caller from the queue, and releases the permit that it may have been granted.
--
-- uses _semaphores.lua
-- uses common/_time.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 queue
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 token of the caller
-- Returns nothing
local holders, limit, queue, waiting, gate = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token = ARGV[1]
local now = microseconds()
local permits, admitted = redis.call('GET', limit) or 0, admitted_ticket(gate)
remove_dead_waiters(queue, waiting, now)
redis.call('ZREM', holders, token)
redis.call('ZREM', queue, token)
redis.call('ZREM', waiting, token)
open_gate(queue, gate, permits - count_active(holders, now), admitted)
