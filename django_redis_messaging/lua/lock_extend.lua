-- Lets a lock's lease end later.
--
-- KEYS  1 lock
-- KEYS  2 fence
-- ARGV  1 token
-- ARGV  2 ms
-- ARGV  3 add: to what is left; replace: from now; keep: from now, unless it ends later anyway
-- ARGV  4 request id
-- Returns 1, or 0 where the lock is not the caller's, or has no lease
local lock, fence = KEYS[1], KEYS[2]
local token, ms, how, request = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if redis.call('GET', lock) ~= token then
  return 0
end
local ends = redis.call('PTTL', lock)
if ends < 0 then
  return 0
end
if how == 'keep' then
  ms = math.max(ms, ends)
elseif how == 'add' then
  local latest, before, owner = string.match(redis.call('GET', fence) or '', '^(%d+) (%S+) (.*)$')
  if before == request then
    return 1
  end
  ms = ms + ends
  -- The first write is one that Redis never refuses.
  redis.call('PEXPIRE', lock, string.format('%.0f', ms))
  if owner == token then
    local rest = math.max(redis.call('PTTL', fence), 2 * ms)
    redis.call('SET', fence, latest .. ' ' .. request .. ' ' .. token, 'PX', string.format('%.0f', rest))
  end
  return 1
end
redis.call('PEXPIRE', lock, string.format('%.0f', ms))
return 1
