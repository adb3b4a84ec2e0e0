-- Records that all chats of a user have stored whether the user hides what they have read.
--
-- KEYS  1 choices: the user's choices
-- ARGV  1 number of the change that they have stored
-- Returns the values of "online", "receipts", "digests", "changes" and "applied"; another number of changes if the user
--   has chosen anew meanwhile
local choices = KEYS[1]
local change = ARGV[1]

if redis.call('HGET', choices, 'changes') == change then
  redis.call('HSET', choices, 'applied', change)
end
return redis.call('HMGET', choices, 'online', 'receipts', 'digests', 'changes', 'applied')
