-- Lists members, the longest-standing first.
--
-- reads only
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 standing
-- ARGV  1 the member after whom to begin, or ''
-- ARGV  2 most members
-- Returns {member, position, roster line, member, …}, or 'no chat', 'no other' (ARGV[1] is no member)
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
local from = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZRANK', KEYS[4], ARGV[1])
  if not rank then
    return 'no other'
  end
  from = rank + 1
end
local names = redis.call('ZRANGE', KEYS[4], from, from + ARGV[2] - 1)
if #names == 0 then
  return {}
end
local positions = redis.call('ZMSCORE', KEYS[2], unpack(names))
local lines = redis.call('HMGET', KEYS[3], unpack(names))
local list = {}
for at, member in ipairs(names) do
  list[#list + 1] = member
  list[#list + 1] = tonumber(positions[at])
  list[#list + 1] = lines[at]
end
return list
