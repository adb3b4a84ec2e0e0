-- Lists the members who have acked a message, and let others see it. A call examines a page of them, in the order of
-- their positions.
--
-- reads only
-- uses _chat.lua
-- uses _members.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 id
-- ARGV  2 maximum number of members
-- ARGV  3 position of the member at which the previous page ended, or ''
-- ARGV  4 that member
-- Returns {position, member, member, …}: first those at which the page ends, both '' if there is no other page. Or
-- 'no chat'
local keys = chat_at(KEYS)
local id, limit, position, last = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]

if redis.call('EXISTS', keys.info) == 0 then
  return 'no chat'
end
-- Members who have acked more since the previous page come later; a member who has moved away from its end is found again.
local function first_rank()
  if position ~= '' and redis.call('ZSCORE', keys.members, last) == position then
    return redis.call('ZRANK', keys.members, last) + 1
  end
  return redis.call('ZCOUNT', keys.members, '-inf', '(' .. (position == '' and id or position))
end

-- Members who joined after the message also have a position above it, but have not seen it.
local function has_seen(member, line)
  local _, join_id = before_block(line)
  if not join_id then
    return (parse_line(line) or id) < id
  end
  local score = redis.call('ZSCORE', keys.members, member)
  return tonumber(join_id) < id and id <= shown_position(keys.roster, member, score)
end

-- members examined by one call
local PAGE_SIZE = 1000
local rank, seen, some_hide = first_rank(), {'', ''}, redis.call('EXISTS', keys.hidden) == 1
local page = redis.call('ZRANGE', keys.members, rank, rank + PAGE_SIZE - 1)
for _, member in ipairs(page) do
  local is_shown = #seen < limit + 2 and not (some_hide and redis.call('SISMEMBER', keys.hidden, member) == 1)
  local line = is_shown and redis.call('HGET', keys.roster, member)
  if line and has_seen(member, line) then
    seen[#seen + 1] = member
  end
end
if #page == PAGE_SIZE then
  seen[1], seen[2] = redis.call('ZSCORE', keys.members, page[#page]), page[#page]
end
return seen
