-- Records whether a user who leaves a direct chat may be added again. The chat does not remember it: it is deleted when
-- the other member leaves, too.
--
-- uses _time.lua
--
-- KEYS  1 declined
-- ARGV  1 chat id
-- ARGV  2 who may add the user again: 1 for the other one, 0 for nobody
-- Returns 1
local declined = KEYS[1]
local chat, again = ARGV[1], ARGV[2]

-- maximum number of chats
local MAX_DECLINED = 1000

if again == '1' then
  redis.call('ZREM', declined, chat)
else
  redis.call('ZADD', declined, milliseconds(), chat)
  redis.call('ZREMRANGEBYRANK', declined, 0, -MAX_DECLINED - 1)
end
return 1
