-- Extends the lease of a lock.
--
-- uses _locks.lua
--
-- KEYS  1-5 lock (_locks.lua)
-- ARGV  1 token
-- ARGV  2 duration: ms
-- ARGV  3 mode: add to the remaining time; replace the remaining time; keep: replace it unless it is longer
-- ARGV  4 request id
-- Returns the remaining time (ms), or 0 if the caller doesn't hold the lock or the lock has no lease
local lock = lock_at(KEYS)
local token, ms, mode, request = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if redis.call('GET', lock.key) ~= token then
  return 0
end
local remaining = redis.call('PTTL', lock.key)
if remaining < 0 then
  return 0
end
local record
if mode == 'keep' then
  ms = math.max(ms, remaining)
elseif mode == 'add' then
  local latest, previous, owner = string.match(redis.call('GET', lock.fence) or '', '^(%d+) (%S+) (.*)$')
  if previous == request then -- a repeat whose first reply was lost
    return remaining
  end
  ms = ms + remaining
  record = owner == token and latest .. ' ' .. request .. ' ' .. token
end
-- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it.
redis.call('PEXPIRE', lock.key, ms)
if record then
  redis.call('SET', lock.fence, record, 'PX', fence_ttl(ms))
else
  redis.call('PEXPIRE', lock.fence, fence_ttl(ms))
end
return ms
