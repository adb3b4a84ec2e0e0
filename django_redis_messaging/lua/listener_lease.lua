-- Takes, or renews, the right to dispatch the keyspace events of a primary.
--
-- KEYS  1 lease
-- ARGV  1 token of the listener
-- ARGV  2 lease: ms
-- Returns the fence, or 0 where another listener has it
local token, fence = string.match(redis.call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if token and token ~= ARGV[1] then
  return 0
end
if redis.call('PEXPIRE', KEYS[1], ARGV[2]) == 1 and token then
  return tonumber(fence)
end
-- The one above was of nothing; without memory what follows would be refused, unless a removal came before.
local time = redis.call('TIME')
fence = time[1] * 1000000 + time[2]
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', fence), 'PX', ARGV[2])
return fence
