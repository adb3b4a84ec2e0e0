-- Changes what a user has chosen.
--
-- KEYS  1 choices: the user's choices
-- KEYS  2 online: that the user is online
-- ARGV  1… field, "0" or "1", field, …
-- Returns the values of "online", "receipts", "digests", "changes" and "applied", nil if they were never written
local choices, online = KEYS[1], KEYS[2]

local receipts = redis.call('HGET', choices, 'receipts') or '1'
for at = 1, #ARGV, 2 do
  redis.call('HSET', choices, ARGV[at], ARGV[at + 1])
  if ARGV[at] == 'receipts' and ARGV[at + 1] ~= receipts then
    redis.call('HINCRBY', choices, 'changes', 1)
  end
end
local found = redis.call('HMGET', choices, 'online', 'receipts', 'digests', 'changes', 'applied')
if found[1] == '0' then
  redis.call('DEL', online)
end
return found
