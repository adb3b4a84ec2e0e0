-- What a chat knows of a member: "join id, joined at (ms), role, token".
local function standing_of(roster, member)
  local line = redis.call('HGET', roster, member)
  if not line then
    return nil
  end
  local join_id, joined_at, role, token = string.match(line, '^(%d+) (%d+) (%a+) (%S+)$')
  return tonumber(join_id), role, token, joined_at
end

local function enrol(roster, member, join_id, joined_at, role, token)
  redis.call('HSET', roster, member, join_id .. ' ' .. joined_at .. ' ' .. role .. ' ' .. token)
end
