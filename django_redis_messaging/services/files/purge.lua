-- Gives the space of files back whose blocks have been deleted, and moves further files that all consumers have
-- acked to the trash.
--
-- uses _files.lua
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- KEYS  5 trash
-- KEYS  6 published
-- KEYS  7 news
-- KEYS  8 space
-- ARGV  1… members of the trash
-- Returns the trash: its members, at most 100
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local published, news, space = KEYS[6], KEYS[7], KEYS[8]

local bytes, purged = 0, false
for at = 1, #ARGV do
  if redis.call('ZREM', trash, ARGV[at]) == 1 then
    bytes, purged = bytes + tonumber(string.match(ARGV[at], ' (%d+)$')), true
  end
end
if purged then
  local used = tonumber(redis.call('HGET', state, 'used') or 0) - bytes
  redis.call('HSET', state, 'used', digits(used))
  wake(state, space, 'space')
end
free_acked(state, positions, files, trash)
expire_when_idle(state, files, trash, {consumers, positions, published, news, space})
return with_trash({}, trash)
