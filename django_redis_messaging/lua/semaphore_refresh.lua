-- Extends the leases of permits.
--
-- uses _time.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- ARGV  1 lease: ms
-- ARGV  2 how long the limit is kept: ms
-- ARGV  3… tokens of the permits
-- Returns 1, or 0 if the lease of any of them had expired
local holders, limit = KEYS[1], KEYS[2]
local lease, limit_ttl = tonumber(ARGV[1]), ARGV[2]
local now, refreshed = microseconds(), 1
for at = 3, #ARGV do
  local expires = redis.call('ZSCORE', holders, ARGV[at])
  -- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
  redis.call('PEXPIRE', limit, limit_ttl)
  if expires and tonumber(expires) > now then
    redis.call('ZADD', holders, digits(now + lease * 1000), ARGV[at])
  else
    refreshed = 0
  end
end
if redis.call('PTTL', holders) <= lease then
  redis.call('PEXPIRE', holders, 2 * lease + 1)
end
return refreshed
