-- A member's record is "label NUL rest NUL rest …"; each rest makes an entry "rest NUL id". No text and
-- no id has a NUL, and NUL sorts before all else: entries are in the order of their rest, then id.

-- The label in a record.
local function label_of(record)
  return string.sub(record, 1, string.find(record, '\0', 1, true) - 1)
end

-- The entries of a member, as a list.
local function entries_of(record, id)
  local entries = {}
  for rest in string.gmatch(record, '%z([^%z]+)') do
    entries[#entries + 1] = rest .. '\0' .. id
  end
  return entries
end
