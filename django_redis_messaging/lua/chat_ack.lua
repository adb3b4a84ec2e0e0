-- Moves a member's position, never back.
--
-- uses _log.lua
-- uses _positions.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 counts
-- KEYS  4 log
-- ARGV  1 user
-- ARGV  2 user as JSON
-- ARGV  3 id
-- ARGV  4 epoch of the cursor, or '' for a bare id
-- ARGV  5 ms of the cursor, or ''
-- Returns the position, or 'no chat', 'no member'
local last, _, epoch, keep = newest_of(KEYS[1])
if not last then
  return 'no chat'
end
local position = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not position then
  return 'no member'
end
position = tonumber(position)
local id, first = tonumber(ARGV[3]), first_of(KEYS[4], last)
if not is_ours(KEYS[4], first, last, epoch, id, ARGV[4], ARGV[5]) then
  return position
end
id = math.min(id, last)
if id <= position then
  return position
end
move(KEYS[2], KEYS[3], KEYS[4], first, last, ARGV[1], ARGV[2], id)
released(KEYS[2], KEYS[4], first, last, keep)
return id
