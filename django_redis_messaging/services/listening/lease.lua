-- Acquires or renews the right to dispatch the keyspace events of a primary.
--
-- uses common/_time.lua
--
-- KEYS  1 lease
-- ARGV  1 token of the listener
-- ARGV  2 length of the lease: ms
-- Returns the fence, or 0 if another listener has it
local lease = KEYS[1]
local token, length = ARGV[1], ARGV[2]
local holder, fence = string.match(redis.call('GET', lease) or '', '^(%S+) (%d+)$')
if holder and holder ~= token then
  return 0
end
-- Redis never refuses a PEXPIRE: when memory is full, the SET below is allowed after it.
if redis.call('PEXPIRE', lease, length) == 1 and holder then
  return tonumber(fence)
end
fence = microseconds()
redis.call('SET', lease, token .. ' ' .. digits(fence), 'PX', length)
return fence
