-- Takes a read-write lock away from a holder, and wakes the next waiting clients. Unlike a release, it is not remembered:
-- the holder's own release reports a loss.
--
-- uses _rwlocks.lua
-- uses common/_polls.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-6 read-write lock (_rwlocks.lua)
-- ARGV  1 token of the holder
-- Returns 1, or 0 if the token doesn't hold the lock
local rwlock = rwlock_at(KEYS)
local token, now = ARGV[1], microseconds()
if tonumber(redis.call('ZSCORE', rwlock.holders, token) or 0) <= now then
  return 0
end
local admitted = redis.call('ZCARD', rwlock.alive) > 0 and admitted_ticket(rwlock.gate)
if admitted then
  check_types('ZCARD', rwlock.readers, rwlock.writers)
end
redis.call('ZREM', rwlock.holders, token)
redis.call('HDEL', rwlock.grants, token)
if admitted then
  remove_dead_clients(rwlock.readers, rwlock.writers, rwlock.alive, now)
  local last, ends = last_holder(rwlock.holders)
  local is_held = ends > now
  if not is_held or last ~= redis.call('HGET', rwlock.grants, 'writer') then
    admit_next(rwlock.readers, rwlock.writers, rwlock.gate, not is_held, admitted)
  end
end
return 1
