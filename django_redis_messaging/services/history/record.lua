-- Adds counts and gauges to the open slots of some series, at each resolution; closes the slots before. A series above
-- the limit is refused.
--
-- uses _slots.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1 series
-- KEYS  2 refused
-- KEYS  3-4 requests
-- KEYS  5… for each series and resolution: open, slots
-- ARGV  1 request id
-- ARGV  2 request window: ms
-- ARGV  3 maximum number of series
-- ARGV  4 number of resolutions
-- ARGV  5… for each resolution: seconds of a slot, slots that are kept; then for each series: its name, its columns, how
-- many of them the coarser resolutions have, the number of pairs to add, the number of pairs of which the highest counts,
-- then these pairs: field, number
-- Returns the server's clock (ms)
local index, refused, requests = KEYS[1], KEYS[2], {KEYS[3], KEYS[4]}
local request, window, limit, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local FIRST_KEY, HEAD = 5, 5
local now = milliseconds()
local resolutions, horizon = {}, 0
for at = 5, 4 + 2 * count, 2 do
  local seconds, slots = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  resolutions[#resolutions + 1] = {seconds = seconds, slots = slots, ms = seconds * slots * 1000}
  horizon = math.max(horizon, seconds * slots * 1000)
end

-- Appends the row of a slot, and removes the oldest one of too many.
local function close(open, key, columns, width, resolution)
  redis.call('RPUSH', key, unpack(row_of(open, columns, width)))
  redis.call('LTRIM', key, digits(-resolution.slots * (width + 1)), -1)
  redis.call('PEXPIRE', key, digits(resolution.ms))
end

-- Makes the slot of `now` the open one, unless a later one is, as after the clock was set back a little.
local function open_slot(key, closed, columns, width, resolution)
  local slot = math.floor(now / 1000 / resolution.seconds) * resolution.seconds
  local before = tonumber(redis.call('HGET', key, 'slot') or nil)
  if before and (before == slot or before > slot and before <= slot + 2 * resolution.seconds) then
    return
  end
  if before and before < slot then
    close(table_of(redis.call('HGETALL', key)), closed, columns, width, resolution)
  end
  redis.call('DEL', key)
  redis.call('HSET', key, 'slot', digits(slot))
  redis.call('PEXPIRE', key, digits(resolution.ms))
end

-- Adds the pairs of ARGV from `at` on: some counts, then some gauges.
local function add(key, at, counts, gauges)
  for pair = at, at + 2 * counts - 2, 2 do
    redis.call('HINCRBY', key, ARGV[pair], ARGV[pair + 1])
  end
  for pair = at + 2 * counts, at + 2 * (counts + gauges) - 2, 2 do
    local highest = tonumber(redis.call('HGET', key, ARGV[pair]) or nil)
    if not highest or tonumber(ARGV[pair + 1]) > highest then
      redis.call('HSET', key, ARGV[pair], ARGV[pair + 1])
    end
  end
end

-- Whether a series may be recorded; it is known from then on.
local function admit(name)
  if not redis.call('ZSCORE', index, name) and redis.call('ZCARD', index) >= limit then
    redis.call('INCRBY', refused, 1)
    if redis.call('PTTL', refused) < 0 then
      redis.call('PEXPIRE', refused, digits(horizon))
    end
    return false
  end
  redis.call('ZADD', index, digits(now), name)
  return true
end

if record_answer_once(request, '1', requests, window, now) then
  return now
end
redis.call('ZREMRANGEBYSCORE', index, '-inf', digits(now - horizon))
local at, key = 5 + 2 * count, FIRST_KEY
while at <= #ARGV do
  local name, columns, coarse = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local counts, gauges = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  if admit(name) then
    local all = select(2, string.gsub(columns, '%S+', ''))
    for number, resolution in ipairs(resolutions) do
      local open, width = KEYS[key + 2 * number - 2], number == 1 and all or coarse
      open_slot(open, KEYS[key + 2 * number - 1], columns, width, resolution)
      add(open, at + HEAD, counts, gauges)
    end
  end
  at, key = at + HEAD + 2 * (counts + gauges), key + 2 * count
end
redis.call('PEXPIRE', index, digits(horizon))
return now
