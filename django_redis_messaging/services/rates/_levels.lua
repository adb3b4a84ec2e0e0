-- GCRA, in its form as a leaky bucket: each use of a key raises a level, which falls evenly, by `limit` uses a period. A
-- use is allowed if the level stays within the capacity. A level is stored as uses × period (ms), so that it falls by
-- `limit` in each ms: all numbers are integers, and exact.
-- ITU-T I.371, Annex A, has both forms of the algorithm.
--
-- Fields of the state: `level:PERIOD`, and `at:PERIOD`: the server time (ms) up to which it has fallen; `requests`: the
-- number of requests that were allowed; `request:0` to `request:7`: the latest of them. Limits of one name with other
-- periods have levels of their own.
--
-- uses common/_time.lua

local REMEMBERED = 8 -- latest requests that are recognized when they are repeated

-- Reads the limits in ARGV from `first` on: limit, period (ms) and capacity of each; and the levels at this moment.
-- Returns the limits, the number of requests, and whether `token` is one of the latest. `limits.others`: the number of
-- levels of other periods.
local function read_levels(state, first, now, token)
  local stored, is_repeat, levels = {}, false, 0
  local fields = redis.call('HGETALL', state)
  for field = 1, #fields, 2 do
    stored[fields[field]] = fields[field + 1]
    is_repeat = is_repeat or fields[field + 1] == token
    levels = levels + (string.sub(fields[field], 1, 6) == 'level:' and 1 or 0)
  end
  local limits = {others = levels}
  for arg = first, #ARGV, 3 do
    local period = ARGV[arg + 1]
    local one = {limit = tonumber(ARGV[arg]), period = tonumber(period), at = tonumber(stored['at:' .. period] or now)}
    one.full = ARGV[arg + 2] * one.period
    -- Above the capacity, it was stored with a larger one. A clock that was set back lets no level fall.
    local level = stored['level:' .. period]
    one.level = math.max(math.min(tonumber(level or 0), one.full) - math.max(now - one.at, 0) * one.limit, 0)
    limits.others = limits.others - (level and 1 or 0)
    limits[#limits + 1] = one
  end
  return limits, tonumber(stored.requests or 0), is_repeat
end

-- The ms until all levels are zero.
local function ms_to_zero(limits)
  local longest = 0
  for _, one in ipairs(limits) do
    longest = math.max(longest, math.ceil(one.level / one.limit))
  end
  return longest
end

-- Returns the ms to wait until all limits have room for this many uses, and the number of the limit that has it last.
local function ms_to_wait(limits, cost)
  local longest, last = 0, 1
  for number, one in ipairs(limits) do
    local wait = math.ceil((one.level + cost * one.period - one.full) / one.limit)
    if wait > longest then
      longest, last = wait, number
    end
  end
  return longest, last
end

-- Returns the number of uses for which all limits have room, and the number of the limit that has least.
local function uses_left(limits)
  local least, tightest = math.huge, 1
  for number, one in ipairs(limits) do
    local left = math.floor((one.full - one.level) / one.period)
    if left < least then
      least, tightest = left, number
    end
  end
  return least, tightest
end

-- What the scripts return: {1 if allowed, uses left, ms to wait, ms until all levels are zero, number of the tightest
-- limit}.
local function decision(limits, wait, last)
  local left, tightest = uses_left(limits)
  return {wait == 0 and 1 or 0, left, wait, ms_to_zero(limits), wait == 0 and tightest or last}
end

-- Stores the levels, as of now, and other `values`. PEXPIRE comes first: Redis never rejects it at maxmemory, nor the
-- writes after it.
local function store_levels(state, limits, now, min_ttl, values)
  local ttl = math.max(ms_to_zero(limits), min_ttl)
  if limits.others > 0 then
    ttl = math.max(ttl, redis.call('PTTL', state))
  end
  for _, one in ipairs(limits) do
    local period = digits(one.period)
    values[#values + 1], values[#values + 2] = 'level:' .. period, digits(one.level)
    values[#values + 1], values[#values + 2] = 'at:' .. period, digits(now)
  end
  local existed = redis.call('PEXPIRE', state, ttl)
  redis.call('HSET', state, unpack(values))
  if existed == 0 then
    redis.call('PEXPIRE', state, ttl)
  end
end

-- The values to store with a request.
local function values_of(requests, token)
  return {'requests', digits(requests + 1), 'request:' .. requests % REMEMBERED, token}
end

-- Whether the clock was set back since any of the levels was stored.
local function was_set_back(limits, now)
  for _, one in ipairs(limits) do
    if now < one.at then
      return true
    end
  end
  return false
end
