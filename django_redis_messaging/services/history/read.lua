-- Reads the slots of a series in a period that ends now, several of them combined into one point.
--
-- reads only
-- uses _slots.lua
-- uses common/_time.lua
--
-- KEYS  1 open
-- KEYS  2 slots
-- ARGV  1 columns that this resolution has, separated by spaces
-- ARGV  2 number of columns that are counts, the first ones
-- ARGV  3 seconds of a slot
-- ARGV  4 seconds of a point
-- ARGV  5 number of points
-- ARGV  6 the columns that are returned, separated by spaces: each a number, from 1 on
-- Returns {now, points}: the server's clock (ms); for each point that has a slot, the oldest first (flat): its
-- beginning (s), then for each of those columns the sum of the counts, or the highest of another number
local open_key, slots_key = KEYS[1], KEYS[2]
local columns, counts = ARGV[1], tonumber(ARGV[2])
local seconds, step, wanted = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local numbers = ARGV[6]
local chosen = {}
for number in string.gmatch(numbers, '%d+') do
  chosen[#chosen + 1] = tonumber(number)
end
local now = milliseconds()
local width = 1 + select(2, string.gsub(columns, '%S+', ''))
local last = math.floor(now / 1000 / step) * step
local first = last - (wanted - 1) * step
local points, current = {}, nil

local function add(rows, from)
  local slot = tonumber(rows[from])
  if slot < first or slot > now / 1000 then
    return
  end
  local moment = math.floor(slot / step) * step
  if moment ~= current then
    current = moment
    points[#points + 1] = moment
    for _, offset in ipairs(chosen) do
      points[#points + 1] = tonumber(rows[from + offset])
    end
    return
  end
  local start = #points - #chosen
  for place, offset in ipairs(chosen) do
    local at, number = start + place, tonumber(rows[from + offset])
    points[at] = offset <= counts and points[at] + number or math.max(points[at], number)
  end
end

local rows = redis.call('LRANGE', slots_key, digits(-wanted * step / seconds * width), -1)
for from = 1, #rows, width do
  add(rows, from)
end
local open = table_of(redis.call('HGETALL', open_key))
if open.slot then
  add(row_of(open, columns, width - 1), 1)
end
return {now, points}
