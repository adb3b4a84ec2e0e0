-- A directory: a member's record is "label NUL suffix NUL suffix …". Each suffix makes one entry,
-- "suffix NUL id NUL label". Neither texts nor ids contain a NUL, and NUL sorts before every other byte, so
-- entries are sorted by suffix, then by id.

-- The keys, in the order of DirectoryKeys in services/directories/directory.py.
local function directory_at(keys)
  return {entries = keys[1], records = keys[2], indexed = keys[3]}
end

-- The entries of a member, as a list.
local function entries_of(record, id)
  local entries, label = {}, string.sub(record, 1, string.find(record, '\0', 1, true) - 1)
  for suffix in string.gmatch(record, '%z([^%z]+)') do
    entries[#entries + 1] = suffix .. '\0' .. id .. '\0' .. label
  end
  return entries
end
