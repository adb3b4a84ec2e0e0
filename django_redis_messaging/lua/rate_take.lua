-- Uses up one of `limit` times per period, if fewer uses than that are in the period that ends now.
--
-- uses _time.lua
--
-- KEYS  1 uses: LIST of the ms of the latest uses
-- ARGV  1 limit
-- ARGV  2 period: ms
-- Returns 0, or the ms to wait until the next use
local uses, limit, period = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])

local now = milliseconds()
local function wait_ms()
  local oldest = tonumber(redis.call('LINDEX', uses, -limit) or now - period)
  return oldest + period - now
end

local wait = wait_ms()
if wait > period then
  -- The clock was set back. Uses in the future don't count, or users would be locked out for longer than a period.
  while tonumber(redis.call('LINDEX', uses, 0) or 0) > now do
    redis.call('LPOP', uses)
  end
  wait = wait_ms()
end
if wait > 0 then
  return wait
end
redis.call('RPUSH', uses, digits(now))
redis.call('LTRIM', uses, -limit, -1)
redis.call('PEXPIRE', uses, period)
return 0
