-- Registers a queue until the moment at which its last job is due.
--
-- uses _queue.lua
-- uses common/_time.lua
--
-- KEYS  1 queues
-- ARGV  1 name
-- ARGV  2 delay of a job: ms, or @ and a moment in ms
-- Returns the server's clock (ms)
local queues = KEYS[1]
local name, delay = ARGV[1], ARGV[2]
local us = microseconds()
local now = math.floor(us / 1000)
redis.call('ZADD', queues, 'GT', digits(math.max(due_after(delay, us), now)), name)
return now
