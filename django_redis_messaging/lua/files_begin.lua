-- Begins publishing: registers consumers, and discards a file that an earlier publisher left half-written.
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
-- ARGV  1 fence of the publisher's lease
-- ARGV  2 number of consumers, whatever their names; 0 if they are named
-- ARGV  3… names of consumers
-- Returns {'stale'}; {'consumers', name…}: the channel has other consumers, these; or {'final', member…} or
-- {'ok', member…} with members of the trash
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local published, news = KEYS[6], KEYS[7]
local fence, expected = ARGV[1], tonumber(ARGV[2])
local names, is_named = {}, {}
for at = 3, #ARGV do
  names[#names + 1], is_named[ARGV[at]] = ARGV[at], true
end

if is_stale(consumers, '', fence) then
  return {'stale'}
end
local final, closed = unpack(redis.call('HMGET', state, 'final', 'closed'))
if closed then -- all consumers have received all files: what follows is new
  redis.call('HDEL', state, 'final', 'closed', 'places')
  redis.call('DEL', positions, consumers)
  redis.call('HSET', consumers, 'f', fence)
elseif final then
  discard_written(state, trash)
  return with_trash({'final'}, trash)
end
local known = redis.call('ZRANGE', positions, 0, -1)
local missing = expected > 0 and #known > expected
for _, name in ipairs(known) do
  missing = missing or (expected == 0 and not is_named[name])
end
if missing then
  table.insert(known, 1, 'consumers')
  return known
end
local last = redis.call('HGET', state, 'last') or '0'
for _, name in ipairs(names) do
  redis.call('ZADD', positions, 'NX', last, name)
end
redis.call('HSET', state, 'places', expected > 0 and expected - #known or 0)
discard_written(state, trash)
free_acked(state, positions, files, trash) -- fewer consumers may be expected than before
wake(state, news, 'news')
expire_when_idle(state, files, trash, {consumers, positions, published, news})
return with_trash({'ok'}, trash)
