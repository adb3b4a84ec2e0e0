-- Records that a user who leaves a direct chat may not be added again. The chat does not remember it: it is deleted when
-- the other member leaves, too.
--
-- uses common/_time.lua
--
-- KEYS  1 declined
-- ARGV  1 chat id
-- Returns 1
local declined = KEYS[1]
local chat = ARGV[1]

-- maximum number of chats
local MAX_DECLINED = 1000

redis.call('ZADD', declined, milliseconds(), chat)
redis.call('ZREMRANGEBYRANK', declined, 0, -MAX_DECLINED - 1)
return 1
