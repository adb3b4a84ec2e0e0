-- Uses up some of `limit` times per period, if the period that ends now has room for all of them.
--
-- uses _time.lua
--
-- KEYS  1 uses: LIST of ms and token of each of the latest uses
-- ARGV  1 limit
-- ARGV  2 period: ms
-- ARGV  3 number of times, at most the limit
-- ARGV  4 token of this call
-- Returns 0, or the ms to wait until there is room
local uses, limit, period, times = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local token = ARGV[4]
-- uses of one RPUSH: unpack() takes a few thousand values at most
local chunk = 1000
-- newest values among which a repeat looks for its token: others may have used the rate after the lost reply
local recent = 2000

if redis.call('LPOS', uses, token, 'RANK', -1, 'MAXLEN', recent) then
  return 0
end
local now = milliseconds()
local function wait_ms()
  -- the latest of the uses that must be over: with `times` more, it is the first above the limit
  local oldest = tonumber(redis.call('LINDEX', uses, 2 * (times - 1 - limit)) or now - period)
  return oldest + period - now
end

local wait = wait_ms()
if wait > period then
  -- The clock was set back. Uses in the future don't count, or users would be locked out for longer than a period.
  while tonumber(redis.call('LINDEX', uses, 0) or 0) > now do
    redis.call('LPOP', uses, 2)
  end
  wait = wait_ms()
end
if wait > 0 then
  return wait
end
-- What stays among the newest `limit` uses. Redis refuses RPUSH while its memory is full, but not after a command that
-- is never refused: deleting must work then.
local kept = 2 * (limit - times)
redis.call('LTRIM', uses, kept > 0 and -kept or 1, kept > 0 and -1 or 0)
local values = {}
for index = 1, math.min(times, chunk) do
  values[2 * index - 1], values[2 * index] = digits(now), token
end
for from = 1, times, chunk do
  redis.call('RPUSH', uses, unpack(values, 1, 2 * math.min(chunk, times - from + 1)))
end
redis.call('PEXPIRE', uses, period)
return 0
