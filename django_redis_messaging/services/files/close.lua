-- Declares that no further file will be announced. When all files are freed, closes the channel: deletes it as soon
-- as all consumers have noticed the end.
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
-- ARGV  1 fence of the publisher's lease
-- Returns {'stale'}, {'closed'}, or {'wait', entry, member…}: the newest entry of the stream `space`, and members
-- of the trash
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local published, news, space = KEYS[6], KEYS[7], KEYS[8]
local fence = ARGV[1]
local CLOSED_TTL = 86400000 -- ms for which a closed channel is kept for consumers that have not noticed the end

if redis.call('EXISTS', state) == 0 then -- a repeat after a lost reply
  return {'closed'}
end
redis.call('HDEL', state, '') -- a full server refuses no write after this one
if not is_publisher(consumers, fence) then
  return {'stale'}
end
if not redis.call('HGET', state, 'final') then
  redis.call('HSET', state, 'final', 1)
  wake(state, news, 'news')
end
if redis.call('ZCARD', files) > 0 or redis.call('ZCARD', trash) > 0 then
  return with_trash({'wait', redis.call('HGET', state, 'space') or '0'}, trash)
end
if redis.call('ZCARD', positions) == 0 and tonumber(redis.call('HGET', state, 'places') or 0) == 0 then
  redis.call('DEL', state, consumers, published, news, space)
else
  redis.call('HSET', state, 'closed', 1)
  for _, key in ipairs({state, consumers, positions, published, news, space}) do
    redis.call('PEXPIRE', key, CLOSED_TTL)
  end
end
return {'closed'}
