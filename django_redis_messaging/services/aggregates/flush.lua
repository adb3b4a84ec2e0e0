-- Adds the counts of consecutive lines of a file, unless the marker shows that they were added before.
--
-- uses common/_time.lua
--
-- KEYS  1 markers
-- KEYS  2 periods
-- KEYS  3 expiries
-- KEYS  4 malformed
-- KEYS  5… the counts of each period
-- ARGV  1 field of the marker: channel and consumer
-- ARGV  2 file id
-- ARGV  3 number of lines before the first one
-- ARGV  4 number of lines up to the last one
-- ARGV  5 1 if the file ends with these lines, else 0
-- ARGV  6 number of malformed lines among them
-- ARGV  7 how long the periods are kept: ms
-- ARGV  8 how long the marker is kept: ms
-- ARGV  9 maximum number of keys of a period
-- ARGV 10 maximum number of periods
-- ARGV 11 maximum number of markers
-- ARGV 12… for each period: its name, the number of its keys, and each key with its count
-- Returns 1 if the lines are counted; 0 if the marker is at another line, so that another process counts the file;
--   {'periods' or 'markers', number that there would be} above a limit, with nothing applied
local markers, periods, expiries, malformed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, file, first, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local is_end, malformed_lines, ttl, marker_ttl = ARGV[5] == '1', ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local max_keys, max_periods, max_markers = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])

local TOTAL = '\0' -- not a valid key
local MAX_EXPIRED = 500 -- removed by one flush: at least as many as it adds

-- Returns file, line and whether the file ends there.
local function read_marker()
  local text = redis.call('HGET', markers, field)
  if not text then
    return 0, 0, false
  end
  local id, line, tail = string.match(text, '^(%d+) (%d+)(.*)$')
  return tonumber(id), tonumber(line), tail ~= ''
end

-- The periods whose counts are given: key and name; from, to: the places of their keys and counts in ARGV.
local function read_changes()
  local changes, at = {}, 12
  for index = 5, #KEYS do
    local name, length = ARGV[at], 2 * tonumber(ARGV[at + 1])
    changes[#changes + 1] = {
      key = KEYS[index], name = name, from = at + 2, to = at + 1 + length, size = redis.call('ZCARD', KEYS[index]),
    }
    at = at + 2 + length
  end
  return changes
end

-- Returns the expired periods and markers, and how many there are of each. A key still exists in the ms in which it
-- expires.
local function find_expired(now)
  local found, count = {}, {p = 0, m = 0}
  local members = redis.call('ZRANGEBYSCORE', expiries, '-inf', '(' .. digits(now), 'LIMIT', 0, MAX_EXPIRED)
  for _, member in ipairs(members) do
    if member ~= 'm' .. field then
      local kind = string.sub(member, 1, 1)
      found[member], count[kind] = string.sub(member, 2), count[kind] + 1
    end
  end
  return found, count
end

local function remove_expired(found)
  for member, name in pairs(found) do
    if string.sub(member, 1, 1) == 'p' then
      redis.call('ZREM', periods, name)
    else
      redis.call('HDEL', markers, name)
    end
    redis.call('ZREM', expiries, member)
  end
end

-- Adds the counts of a period. Those of keys above the limit are added to ''.
local function add_counts(change)
  local free, total = max_keys - change.size, 0
  for _, extra in ipairs({TOTAL, ''}) do
    free = free + (redis.call('ZSCORE', change.key, extra) and 1 or 0)
  end
  local is_tight = free < (change.to - change.from + 1) / 2
  for at = change.from, change.to, 2 do
    local key, count = ARGV[at], ARGV[at + 1]
    if is_tight and key ~= '' and not redis.call('ZSCORE', change.key, key) then
      free = free - 1
      key = free < 0 and '' or key
    end
    redis.call('ZINCRBY', change.key, '-' .. count, key)
    total = total + tonumber(count)
  end
  redis.call('ZINCRBY', change.key, digits(-total), TOTAL)
end

local marked, line, ended = read_marker()
if marked < file then
  line, ended = 0, false
end
-- Every process counts the same for the same lines. So if the marker is at the last line, these lines are counted,
-- be it by this call, whose reply was lost, or by another process.
local is_repeat = last > first and line == last
if marked > file or not is_repeat and (line ~= first or ended and last > first) then
  return 0
end
local now, changes = milliseconds(), is_repeat and {} or read_changes()
local expired, expired_count = find_expired(now)
local period_count = redis.call('ZCARD', periods) - expired_count.p
local marker_count = redis.call('HLEN', markers)
local is_known = {}
for at, change in ipairs(changes) do
  is_known[at] = redis.call('ZSCORE', periods, change.name) and not expired['p' .. change.name]
  period_count = period_count + (is_known[at] and 0 or 1)
end
if #changes > 0 and period_count > max_periods then
  return {'periods', period_count}
end
if marked == 0 and marker_count - expired_count.m >= max_markers then
  return {'markers', marker_count - expired_count.m + 1}
end
redis.call('GET', malformed)
-- Every key has been read by now: a key of another type has raised an error before the first write. The marker is
-- written first: a full server refuses that, but would not refuse the counts after a removal.

redis.call('HSET', markers, field, digits(file) .. ' ' .. digits(last) .. ((is_end or ended) and ' end' or ''))
remove_expired(expired)
if not is_repeat and malformed_lines ~= '0' then
  redis.call('INCRBY', malformed, malformed_lines)
end
redis.call('ZADD', expiries, digits(now + marker_ttl), 'm' .. field)
for at, change in ipairs(changes) do
  add_counts(change)
  redis.call('PEXPIREAT', change.key, digits(now + ttl))
  redis.call('ZADD', expiries, digits(now + ttl), 'p' .. change.name)
  if not is_known[at] then
    redis.call('ZADD', periods, 0, change.name)
  end
end
local latest = redis.call('ZREVRANGE', expiries, 0, 0, 'WITHSCORES')[2]
for _, key in ipairs({markers, periods, expiries, malformed}) do
  redis.call('PEXPIREAT', key, latest)
end
return 1
