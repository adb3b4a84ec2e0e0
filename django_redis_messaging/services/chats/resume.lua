-- Resumes the membership of a user who has unblocked the other member of a direct chat. The user sees what is sent and
-- what happens from now on. Others see the user's position from before the block until the user moves it.
--
-- uses _log.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_live.lua
-- uses common/_time.lua
--
-- KEYS  1 newest
-- KEYS  2 members
-- KEYS  3 roster
-- KEYS  4 own
-- KEYS  5 info
-- ARGV  1 user
-- Returns 1, or 0 if the user is not suspended
local newest, members, roster, own, info = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local user = ARGV[1]

local event = (redis.call('HGET', info, 'event') or 0) + 1
local chat, score, line = read_chat(newest), redis.call('ZSCORE', members, user), redis.call('HGET', roster, user)
if not chat or not score or score % 1 ~= 0.5 then
  return 0
end
move_position(members, own, user, chat.last + 0.25)
if line then
  local join_id, role, token, joined_at = parse_line(line)
  local _, first_join_id, first_joined_at = before_block(line)
  local before = {'unblocked', math.floor(score), first_join_id or join_id, first_joined_at or joined_at}
  local resumed = membership_line(event, chat.last, milliseconds(), role, token)
  redis.call('HSET', roster, user, table.concat(before, ':') .. ' ' .. resumed)
end
publish_hint('a', members, user)
return 1
