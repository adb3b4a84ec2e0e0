-- Lists the members of the first entries in a range, each once: all of them as of one moment.
--
-- reads only
--
-- KEYS  1 entries
-- ARGV  1 start of the range, as ZRANGE BYLEX takes it
-- ARGV  2 end of the range
-- ARGV  3 maximum number of members
-- Returns {{"id NUL label", …}, the last entry read}; '' instead of the entry if the range has no more entries, or
-- the members are complete
local entries, start, stop, limit = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

-- entries read by one call
local MAX_ENTRIES = 2048
-- bytes of the entries read by one call; the last read may exceed them
local MAX_BYTES = 2 * 1024 * 1024
-- entries read by one command
local ENTRIES_PER_READ = 256

local members, is_listed = {}, {}
local total, bytes = 0, 0

local function append_member(entry)
  local member = string.sub(entry, string.find(entry, '\0', 1, true) + 1)
  if not is_listed[member] then
    is_listed[member] = true
    members[#members + 1] = member
  end
end

repeat
  local page = redis.call('ZRANGE', entries, start, stop, 'BYLEX', 'LIMIT', 0, ENTRIES_PER_READ)
  for _, entry in ipairs(page) do
    append_member(entry)
    if #members == limit then
      return {members, ''}
    end
    bytes = bytes + #entry
  end
  if #page < ENTRIES_PER_READ then
    return {members, ''}
  end
  total, start = total + #page, '(' .. page[#page]
until total >= MAX_ENTRIES or bytes >= MAX_BYTES
return {members, string.sub(start, 2)}
