-- Uses a key as often as `cost`, if the period of each limit that ends now has room for it.
--
-- uses _windows.lua
-- uses common/_time.lua
--
-- KEYS  1 uses
-- ARGV  1 cost
-- ARGV  2 request id: a repeat of a request that was allowed uses nothing
-- ARGV  3 for how long the request is remembered at least: ms
-- ARGV  4… limit and period (ms) of each limit, the shortest period first
-- Returns {1 if allowed, uses left, ms to wait, ms until no use counts any more, number of the tightest limit}
local uses = KEYS[1]
local cost, request, min_ttl, period = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[#ARGV])
-- newest values among which a repeat looks for its request: others may have used the key after the lost reply
local recent = 400
local now = microseconds()
local total = redis.call('LLEN', uses) / 2
if total > 0 then
  if redis.call('LPOS', uses, request, 'RANK', -1, 'MAXLEN', recent) then
    local _, left, tightest = decide(4, now, 0, uses, total)
    return {1, left, 0, ms_to_none(now, uses, period), tightest}
  end
  if tonumber(redis.call('LINDEX', uses, -2)) > now then
    pull_back(now, uses, total)
  end
end
local wait, left, tightest, over = decide(4, now, cost, uses, total)
if wait > 0 then
  return {0, left, wait, ms_to_none(now, uses, period), tightest}
end
if over > 0 then
  redis.call('LTRIM', uses, 2 * over, -1)
end
-- PEXPIRE comes before RPUSH: Redis never rejects it at maxmemory, nor the writes after it.
local ttl = math.max(period, min_ttl)
local existed = redis.call('PEXPIRE', uses, ttl)
local values = {}
for place = 1, 2 * cost, 2 do
  values[place], values[place + 1] = digits(now), request
end
append_uses(uses, values)
if existed == 0 then
  redis.call('PEXPIRE', uses, ttl)
end
return {1, left - cost, 0, period, tightest}
