-- Changes what a user has chosen, or records that all chats of the user have stored whether they hide what they have
-- read.
--
-- KEYS  1 choices: the user's choices
-- KEYS  2 online: that the user is online
-- ARGV  1… field, "0" or "1", field, …; or "applied" and the number of the change of "receipts" that the chats have
--          stored: recorded unless the user has chosen anew meanwhile
-- Returns the values of "online", "receipts", "digests", "changes" and "applied", nil if they were never written
local choices, online = KEYS[1], KEYS[2]

local receipts, changes = unpack(redis.call('HMGET', choices, 'receipts', 'changes'))
for at = 1, #ARGV, 2 do
  local field, value = ARGV[at], ARGV[at + 1]
  if field ~= 'applied' or value == changes then
    redis.call('HSET', choices, field, value)
  end
  if field == 'receipts' and value ~= (receipts or '1') then
    redis.call('HINCRBY', choices, 'changes', 1)
  end
end
local found = redis.call('HMGET', choices, 'online', 'receipts', 'digests', 'changes', 'applied')
if found[1] == '0' then
  redis.call('DEL', online)
end
return found
