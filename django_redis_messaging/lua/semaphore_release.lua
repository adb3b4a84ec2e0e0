-- Gives a permit back, and wakes whoever is next.
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
-- ARGV  1 token of the permit
-- Returns 1, or 0 where its lease had ended
local now, ends = microseconds(), tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if ends < 0 then
  return 1
end
local waits, limit, shown = redis.call('ZCARD', KEYS[3]) > 0, nil, nil
if waits then
  limit, shown = redis.call('GET', KEYS[2]) or 0, opened_for(KEYS[5])
  swept(KEYS[3], KEYS[4], now)
end
-- Redis refuses no removal for want of memory, nor what a script writes after it.
redis.call('ZREM', KEYS[1], ARGV[1])
if ends > now then
  redis.call('ZADD', KEYS[1], digits(now + RELEASED), ARGV[1])
  if redis.call('PTTL', KEYS[1]) < REMEMBERED then
    redis.call('PEXPIRE', KEYS[1], REMEMBERED)
  end
end
if waits then
  opened(KEYS[3], KEYS[5], limit - held(KEYS[1], now), shown)
end
return ends > now and 1 or 0
