-- Changes what a user has chosen.
--
-- KEYS  1 choices: the user's choices
-- KEYS  2 online: that the user is online
-- ARGV  1… field, "0" or "1", field, …
-- Returns the values of "online", "receipts" and "digests", nil if they were never chosen
local choices, online = KEYS[1], KEYS[2]

for at = 1, #ARGV, 2 do
  redis.call('HSET', choices, ARGV[at], ARGV[at + 1])
end
local found = redis.call('HMGET', choices, 'online', 'receipts', 'digests')
if found[1] == '0' then
  redis.call('DEL', online)
end
return found
