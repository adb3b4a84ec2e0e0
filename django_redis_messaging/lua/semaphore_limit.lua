-- Sets how many permits there are, and wakes whoever may go now.
--
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _semaphores.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 line
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 limit
-- ARGV  2 how long it is kept: ms
-- Returns nothing
local now, waits, shown = microseconds(), redis.call('ZCARD', KEYS[3]) > 0, nil
local count = held(KEYS[1], now)
if waits then
  shown = opened_for(KEYS[5])
  swept(KEYS[3], KEYS[4], now)
end
-- Redis refuses no GETEX for want of memory, nor what a script writes after it.
redis.call('GETEX', KEYS[2], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
if waits then
  opened(KEYS[3], KEYS[5], ARGV[1] - count, shown)
end
