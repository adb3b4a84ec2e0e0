-- Exact sliding windows: a use is allowed if fewer than `limit` uses are in the period that ends now. One list has the
-- server time (µs) and the request of each use, the oldest one first; uses that are older than all periods are removed.
-- In ms, a period would be up to 1 ms too short, and in that time many uses can be allowed.
--
-- uses common/_time.lua

-- uses of one RPUSH: unpack() takes a few thousand values at most
local CHUNK = 1000

-- µs as ms, rounded up: a caller that waits so long does not come too early.
local function to_ms(us)
  return math.ceil(us / 1000)
end

-- Returns how many of the `total` uses were made at this moment or before. They are usually few: the search doubles its
-- steps from the oldest one on.
local function count_until(moment, uses, total)
  local low, high = 0, 1
  while high <= total and tonumber(redis.call('LINDEX', uses, 2 * high - 2)) <= moment do
    low, high = high, 2 * high
  end
  high = math.min(high, total + 1)
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('LINDEX', uses, 2 * middle - 2)) <= moment then
      low = middle
    else
      high = middle
    end
  end
  return low
end

-- Removes all but the oldest values. Redis never rejects it at maxmemory, nor the writes after it.
local function keep_oldest(uses, number)
  redis.call('LTRIM', uses, number > 0 and 0 or 1, number > 0 and number - 1 or 0)
end

local function append_uses(uses, values)
  for first = 1, #values, 2 * CHUNK do
    redis.call('RPUSH', uses, unpack(values, first, math.min(first + 2 * CHUNK - 1, #values)))
  end
end

-- The clock was set back: uses in the future count as if they were made now. Else the key would be refused until the
-- clock has caught up, or more uses than the limit would be allowed in a period.
-- rare
local function pull_back(now, uses, total)
  local first = 2 * count_until(now, uses, total)
  local values = redis.call('LRANGE', uses, first, -1)
  for place = 1, #values, 2 do
    values[place] = digits(now)
  end
  keep_oldest(uses, first)
  append_uses(uses, values)
end

-- Decides about `cost` uses, by the limits in ARGV from `first` on: limit and period (ms) of each, the shortest period
-- first. Returns the ms to wait, the number of uses for which all limits have room, the number of the limit that refuses
-- longest or has least room, and the number of uses that are older than all periods.
local function decide(first, now, cost, uses, total)
  local wait, left, tightest, last, over = 0, math.huge, 1, 1, 0
  for arg = first, #ARGV, 2 do
    local limit, period, number = tonumber(ARGV[arg]), ARGV[arg + 1] * 1000, (arg - first) / 2 + 1
    over = count_until(now - period, uses, total)
    local room = limit - (total - over)
    if room < left then
      left, tightest = room, number
    end
    if room < cost then
      -- the use that must be over, so that this many are allowed
      local oldest = tonumber(redis.call('LINDEX', uses, 2 * (total - limit + cost - 1)))
      -- never longer than a period, if the clock was set back
      local needed = math.min(oldest + period - now, period)
      if needed > wait then
        wait, last = needed, number
      end
    end
  end
  return to_ms(wait), math.max(left, 0), wait > 0 and last or tightest, over
end

-- The ms until no use counts any more. `period` is the longest: ms.
local function ms_to_none(now, uses, period)
  local newest = redis.call('LINDEX', uses, -2)
  return newest and math.min(to_ms(math.max(newest + period * 1000 - now, 0)), period) or 0
end
