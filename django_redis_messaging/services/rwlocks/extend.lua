-- Extends the lease of a holder of a read-write lock.
--
-- uses _rwlocks.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-6 read-write lock (_rwlocks.lua)
-- ARGV  1 token
-- ARGV  2 lease: ms
-- Returns 1, or 0 if the lease had expired
local rwlock = rwlock_at(KEYS)
local token, lease = ARGV[1], tonumber(ARGV[2])
local now = microseconds()
if tonumber(redis.call('ZSCORE', rwlock.holders, token) or 0) <= now then
  return 0
end
allow_writes_when_full(rwlock.grants)
redis.call('ZADD', rwlock.holders, now + lease * 1000, token)
keep_grants(rwlock.holders, rwlock.grants, lease)
return 1
