-- Lists members, the longest-standing first.
--
-- reads only
-- uses _chat.lua
-- uses _members.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1 member after whom the list begins, or ''
-- ARGV  2 maximum number of members
-- Returns {{member, position, ms of joining, role, 1 if suspended, else 0}, …}, or 'no chat', 'no other' (ARGV[1] is no
--   member)
local keys = chat_at(KEYS)
local after, limit = ARGV[1], tonumber(ARGV[2])

if redis.call('EXISTS', keys.info) == 0 then
  return 'no chat'
end
local from = 0
if after ~= '' then
  local rank = redis.call('ZRANK', keys.standing, after)
  if not rank then
    return 'no other'
  end
  from = rank + 1
end
local names = redis.call('ZRANGE', keys.standing, from, from + limit - 1)
if #names == 0 then
  return {}
end
local positions = redis.call('ZMSCORE', keys.members, unpack(names))
local lines = redis.call('HMGET', keys.roster, unpack(names))
local list = {}
for at, member in ipairs(names) do
  local position, line = tonumber(positions[at]), lines[at]
  if position and line then -- otherwise one of the keys was lost
    local _, role, _, joined_at = parse_line(line)
    local _, _, joined_before = before_block(line)
    position = position % 1 == 0 and position or shown_position(keys.roster, member, position)
    list[#list + 1] = {member, position, joined_before or joined_at, role, is_suspended(line) and 1 or 0}
  end
end
return list
