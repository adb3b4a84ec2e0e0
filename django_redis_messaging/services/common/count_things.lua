-- Counts the things of which keys are found on one server, among a limited number of its keys.
--
-- reads only
--
-- KEYS  1 any key, of the server
-- ARGV  1 beginning of all keys of the app
-- ARGV  2 number of keys after which the search ends
-- ARGV  3… kind, end of the name of the key that each thing of this kind has: as in {chat:42}:newest
-- Returns {whether all keys were searched: 1 or 0, number of things of the first kind, …}
local begin, limit = ARGV[1], tonumber(ARGV[2])
local FIRST = 3
-- keys that one SCAN searches
local COUNT = 500
local endings, found, total = {}, {}, {}
for at = FIRST, #ARGV, 2 do
  endings[ARGV[at]], total[#total + 1] = ARGV[at + 1], ARGV[at]
end
local cursor, searched = '0', 0
repeat
  local reply = redis.call('SCAN', cursor, 'COUNT', COUNT)
  cursor, searched = reply[1], searched + COUNT
  for _, key in ipairs(reply[2]) do
    local kind, ending = nil, nil
    if string.sub(key, 1, #begin) == begin then
      kind, ending = string.match(key, '^{(%l+):[^}]*}(.*)$', #begin + 1)
    end
    if kind and endings[kind] == ending then
      found[kind] = (found[kind] or 0) + 1
    end
  end
until cursor == '0' or searched >= limit
local reply = {cursor == '0' and 1 or 0}
for at, kind in ipairs(total) do
  reply[at + 1] = found[kind] or 0
end
return reply
