-- A member's record is "label NUL rest NUL rest …"; each rest makes an entry "rest NUL id NUL label". No
-- text and no id has a NUL, and NUL sorts before all else: entries are in order of their rest, then id.

-- The entries of a member, as a list.
local function entries_of(record, id)
  local entries, label = {}, string.sub(record, 1, string.find(record, '\0', 1, true) - 1)
  for rest in string.gmatch(record, '%z([^%z]+)') do
    entries[#entries + 1] = rest .. '\0' .. id .. '\0' .. label
  end
  return entries
end
