-- Suspends the membership of a user who has blocked the other member of a direct chat. For the other one, nothing has
-- changed.
--
-- uses _chat.lua
-- uses _members.lua
-- uses common/_hints.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 user
-- Returns 1, or 0 if the user is not a member, or is suspended already
local keys = chat_at(KEYS)
local user = ARGV[1]

local score, line = redis.call('ZSCORE', keys.members, user), redis.call('HGET', keys.roster, user)
local is_marked = not line or is_suspended(line)
if is_marked and (not score or score % 1 == 0.5) then
  return 0
end
-- A removal comes first: it is not refused when Redis is out of memory.
redis.call('ZREM', keys.typing, user)
if score and score % 1 ~= 0.5 then -- otherwise a repair writes it
  redis.call('ZADD', keys.members, shown_position(keys.roster, user, score) + 0.5, user)
end
if not is_marked then
  redis.call('HSET', keys.roster, user, SUSPENDED .. line)
end
publish_hint('a', keys.members, user)
return 1
