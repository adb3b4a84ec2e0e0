-- Lists members by the entries in a range, each member once, at its first entry.
--
-- reads only
-- uses _directory.lua
--
-- KEYS  1 entries
-- KEYS  2 records
-- ARGV  1 start of the range: "[" or "(" and a string
-- ARGV  2 end of the range: "(" and a string
-- ARGV  3 most members
-- Returns {where to go on, id, label, id, label, …}; where to go on is the entry after which there may be
--   more, or '' when the range is exhausted or enough were found
local most, left = tonumber(ARGV[3]), 500
local start, ids, seen = ARGV[1], {}, {}

-- A member with many entries here fills several pages: a call looks at no more than `left` of them.
local last = ''
repeat
  local size = math.min(most, left)
  local entries = redis.call('ZRANGE', KEYS[1], start, ARGV[2], 'BYLEX', 'LIMIT', 0, size)
  for _, entry in ipairs(entries) do
    local id = string.sub(entry, string.find(entry, '\0', 1, true) + 1)
    if not seen[id] and #ids < most then
      seen[id] = true
      ids[#ids + 1] = id
    end
  end
  left = left - size
  last = #entries == size and entries[size] or ''
  start = '(' .. last
until last == '' or left == 0 or #ids == most

local found = {#ids < most and last or ''}
if #ids > 0 then
  for at, record in ipairs(redis.call('HMGET', KEYS[2], unpack(ids))) do
    found[#found + 1] = ids[at]
    found[#found + 1] = label_of(record)
  end
end
return found
