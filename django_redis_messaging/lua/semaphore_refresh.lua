-- Lets the leases of permits end later.
--
-- uses _digits.lua
-- uses _microseconds.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- ARGV  1 lease: ms
-- ARGV  2 how long the limit is kept: ms
-- ARGV  3… tokens of the permits
-- Returns 1, or 0 where one of the leases had ended
local now, lease, kept = microseconds(), tonumber(ARGV[1]), 1
for at = 3, #ARGV do
  local ends = redis.call('ZSCORE', KEYS[1], ARGV[at])
  -- Redis refuses no PEXPIRE for want of memory, nor what a script writes after it.
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  if ends and tonumber(ends) > now then
    redis.call('ZADD', KEYS[1], digits(now + lease * 1000), ARGV[at])
  else
    kept = 0
  end
end
if redis.call('PTTL', KEYS[1]) <= lease then
  redis.call('PEXPIRE', KEYS[1], 2 * lease + 1)
end
return kept
