-- Lists the members who have acked a message, and let others see it. A call examines a page of them, in the order of
-- their positions.
--
-- reads only
-- uses _members.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 hidden
-- ARGV  1 id
-- ARGV  2 maximum number of members
-- ARGV  3 position of the member at which the previous page ended, or ''
-- ARGV  4 that member
-- Returns {position, member, member, …}: first those at which the page ends, both '' if there is no other page. Or
-- 'no chat'
local info, members, roster, hidden = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, limit, position, last = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]

if redis.call('EXISTS', info) == 0 then
  return 'no chat'
end
-- Members who have acked more since the previous page come later; who has moved from its end is found again.
local function first_rank()
  if position ~= '' and redis.call('ZSCORE', members, last) == position then
    return redis.call('ZRANK', members, last) + 1
  end
  return redis.call('ZCOUNT', members, '-inf', '(' .. (position == '' and id or position))
end

-- Members who joined after the message also have a position above it, but have not seen it.
local function has_seen(member, line)
  local _, join_id = before_block(line)
  if not join_id then
    return (parse_line(line) or id) < id
  end
  local score = redis.call('ZSCORE', members, member)
  return tonumber(join_id) < id and id <= shown_position(roster, member, score)
end

-- members examined by one call
local PAGE_SIZE = 1000
local rank, seen, some_hide = first_rank(), {'', ''}, redis.call('EXISTS', hidden) == 1
local page = redis.call('ZRANGE', members, rank, rank + PAGE_SIZE - 1)
for _, member in ipairs(page) do
  local is_shown = #seen < limit + 2 and not (some_hide and redis.call('SISMEMBER', hidden, member) == 1)
  local line = is_shown and redis.call('HGET', roster, member)
  if line and has_seen(member, line) then
    seen[#seen + 1] = member
  end
end
if #page == PAGE_SIZE then
  seen[1], seen[2] = redis.call('ZSCORE', members, page[#page]), page[#page]
end
return seen
