-- Slots of a series: the open one is a HASH; closed ones are rows in a LIST, each the beginning of the slot (s) and a
-- number for each column.
--
-- uses common/_time.lua

-- A HASH as a table, from the reply to HGETALL.
local function table_of(flat)
  local found = {}
  for at = 1, #flat, 2 do
    found[flat[at]] = flat[at + 1]
  end
  return found
end

-- The counts by level of each duration, in the order of the levels: {wait = {{level, count}, …; total = n}, …}.
local function histograms_of(open)
  local found = {}
  for field, count in pairs(open) do
    local name, level = string.match(field, '^(%a+):(%d+)$')
    if name then
      local levels = found[name] or {total = 0}
      levels[#levels + 1] = {tonumber(level), tonumber(count)}
      levels.total, found[name] = levels.total + count, levels
    end
  end
  for _, levels in pairs(found) do
    table.sort(levels, function(a, b) return a[1] < b[1] end)
  end
  return found
end

-- The level that `percent` of the durations don't exceed; 0 if there is none.
local function percentile(levels, percent)
  if not levels then
    return '0'
  end
  local rank, seen = math.ceil(levels.total * percent / 100), 0
  for _, one in ipairs(levels) do
    seen = seen + one[2]
    if seen >= rank then
      return digits(one[1])
    end
  end
end

-- The row of an open slot, with these columns: names, separated by spaces.
local function row_of(open, columns, count)
  local row, histograms = {open.slot}, histograms_of(open)
  for column in string.gmatch(columns, '%S+') do
    if #row > count then
      break
    end
    local name, percent = string.match(column, '^(%a+)(%d+)$')
    row[#row + 1] = name and percentile(histograms[name], percent) or open[column] or '0'
  end
  return row
end
