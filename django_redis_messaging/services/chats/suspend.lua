-- Suspends the membership of a user who has blocked the other member of a direct chat. For the other one, nothing has
-- changed.
--
-- uses _members.lua
-- uses common/_live.lua
--
-- KEYS  1 members
-- KEYS  2 roster
-- KEYS  3 typing
-- ARGV  1 user
-- Returns 1, or 0 if the user is not a member, or is suspended already
local members, roster, typing = KEYS[1], KEYS[2], KEYS[3]
local user = ARGV[1]

local score, line = redis.call('ZSCORE', members, user), redis.call('HGET', roster, user)
local is_marked = not line or is_suspended(line)
if is_marked and (not score or score % 1 == 0.5) then
  return 0
end
-- A removal comes first: it is not refused when Redis is out of memory.
redis.call('ZREM', typing, user)
if score and score % 1 ~= 0.5 then -- otherwise a repair writes it
  redis.call('ZADD', members, shown_position(roster, user, score) + 0.5, user)
end
if not is_marked then
  redis.call('HSET', roster, user, SUSPENDED .. line)
end
publish_hint('a', members, user)
return 1
