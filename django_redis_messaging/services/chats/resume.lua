-- Resumes the membership of a user who has unblocked the other member of a direct chat. The user sees what is sent and
-- what happens from now on. Others see the user's position from before the block until the user moves it.
--
-- uses _chat.lua
-- uses _members.lua
-- uses _positions.lua
-- uses common/_hints.lua
-- uses common/_time.lua
--
-- KEYS  1-8 chat (_chat.lua)
-- ARGV  1 user
-- Returns 1, or 0 if the user is not suspended
local keys = chat_at(KEYS)
local user = ARGV[1]

local event = (redis.call('HGET', keys.info, 'event') or 0) + 1
local chat, score, line = read_chat(keys.newest), redis.call('ZSCORE', keys.members, user), redis.call('HGET', keys.roster, user)
if not chat or not score or score % 1 ~= 0.5 then
  return 0
end
move_position(keys.members, keys.own, user, chat.last + 0.25)
if line then
  local join_id, role, number, joined_at = parse_line(line)
  local _, first_join_id, first_joined_at = before_block(line)
  local before = {'unblocked', math.floor(score), first_join_id or join_id, first_joined_at or joined_at}
  local resumed = membership_line(event, chat.last, milliseconds(), role, number)
  redis.call('HSET', keys.roster, user, table.concat(before, ':') .. ' ' .. resumed)
end
publish_hint('a', keys.members, user)
return 1
