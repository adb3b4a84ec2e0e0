-- Adds members to a directory; what a member had there before is replaced.
--
-- uses _directory.lua
--
-- KEYS  1 entries
-- KEYS  2 records
-- ARGV  1 most entries the directory may hold
-- ARGV  2… members: id and record by turns, no id twice
-- Returns 0, or the number of entries it would have had to hold (and then nothing is written)
local function absent_from(entries, others)
  local known, found = {}, {}
  for _, entry in ipairs(others) do
    known[entry] = true
  end
  for _, entry in ipairs(entries) do
    if not known[entry] then
      found[#found + 1] = entry
    end
  end
  return found
end

local changes, growth = {}, 0
for at = 2, #ARGV, 2 do
  local id, record = ARGV[at], ARGV[at + 1]
  local old = redis.call('HGET', KEYS[2], id)
  if old ~= record then
    local before = old and entries_of(old, id) or {}
    local after = entries_of(record, id)
    growth = growth + #after - #before
    changes[#changes + 1] = {id, record, after, absent_from(before, after)}
  end
end

local total = redis.call('ZCARD', KEYS[1]) + growth
if growth > 0 and total > tonumber(ARGV[1]) then
  return total
end

for _, change in ipairs(changes) do
  local id, record, entries, gone = unpack(change)
  -- HSET comes first, for without memory it is refused: before anything has changed.
  redis.call('HSET', KEYS[2], id, record)
  local scored = {}
  for _, entry in ipairs(entries) do
    scored[#scored + 1] = 0
    scored[#scored + 1] = entry
  end
  redis.call('ZADD', KEYS[1], unpack(scored))
  if #gone > 0 then
    redis.call('ZREM', KEYS[1], unpack(gone))
  end
end
return 0
