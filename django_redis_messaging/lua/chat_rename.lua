-- Gives a chat another title.
--
-- KEYS  1 info
-- KEYS  2 members
-- ARGV  1 user
-- ARGV  2 title
-- Returns 1, or 'no chat', 'no member'
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'no chat'
end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return 'no member'
end
redis.call('HSET', KEYS[1], 'title', ARGV[2])
return 1
