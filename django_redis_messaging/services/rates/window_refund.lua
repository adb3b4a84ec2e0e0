-- Takes back the latest uses of a key.
--
-- uses _windows.lua
-- uses common/_time.lua
--
-- KEYS  1 uses
-- KEYS  2 refunds
-- ARGV  1 number of uses
-- ARGV  2 request id: a repeat takes back nothing
-- ARGV  3 for how long the request is remembered at least: ms
-- ARGV  4 longest period: ms
-- Returns 1, also to a repeat; or 0 if no use of the key counts any more
local uses, refunds = KEYS[1], KEYS[2]
local number, request, min_ttl, period = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local REMEMBERED = 8 -- latest refunds that are recognized when they are repeated
if redis.call('LPOS', refunds, request) then
  return 1
end
if ms_to_none(microseconds(), uses, tonumber(period)) == 0 then
  return 0
end
keep_oldest(uses, redis.call('LLEN', uses) - 2 * number)
redis.call('LPUSH', refunds, request)
redis.call('LTRIM', refunds, 0, REMEMBERED - 1)
redis.call('PEXPIRE', refunds, min_ttl)
return 1
