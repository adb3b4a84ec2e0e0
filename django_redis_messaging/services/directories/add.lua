-- Adds members to a directory, replacing their previous records.
--
-- uses _directory.lua
--
-- KEYS  1-3 directory (_directory.lua)
-- ARGV  1 maximum number of entries in the directory
-- ARGV  2… id and record of each member, no id twice
-- Returns 0, or the number of entries that the directory would have had; then nothing is written
local keys = directory_at(KEYS)
local max_entries = tonumber(ARGV[1])

-- The items of `list` that `other` does not contain.
local function difference(list, other)
  local contained, found = {}, {}
  for _, item in ipairs(other) do
    contained[item] = true
  end
  for _, item in ipairs(list) do
    if not contained[item] then
      found[#found + 1] = item
    end
  end
  return found
end

-- Returns the changes to make, and by how many entries the directory would grow.
local function plan_changes()
  local changes, growth = {}, 0
  for at = 2, #ARGV, 2 do
    local id, record = ARGV[at], ARGV[at + 1]
    local old = redis.call('HGET', keys.records, id)
    if old ~= record then
      local before = old and entries_of(old, id) or {}
      local after = entries_of(record, id)
      growth = growth + #after - #before
      changes[#changes + 1] = {id = id, record = record, entries = after, stale = difference(before, after)}
    end
  end
  return changes, growth
end

local function write_member(change)
  -- HSET comes first: Redis refuses it for lack of memory before anything has changed.
  redis.call('HSET', keys.records, change.id, change.record)
  local scored = {}
  for _, entry in ipairs(change.entries) do
    scored[#scored + 1] = 0
    scored[#scored + 1] = entry
  end
  redis.call('ZADD', keys.entries, unpack(scored))
  if #change.stale > 0 then
    redis.call('ZREM', keys.entries, unpack(change.stale))
  end
end

local changes, growth = plan_changes()
local total = redis.call('ZCARD', keys.entries) + growth
if growth > 0 and total > max_entries then
  return total
end
for _, change in ipairs(changes) do
  write_member(change)
end
return 0
