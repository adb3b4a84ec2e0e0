-- Removes the oldest events of a channel that has more than it may have.
--
-- uses _digits.lua
-- uses _channel.lua
--
-- KEYS  1 head
-- KEYS  2… the ring of buckets
-- ARGV  1 length of a bucket: ms
-- ARGV  2 most events the channel keeps
-- ARGV  3 how long an idle channel is kept: ms
-- Returns the first id that is left
local last, us, epoch, first = head_of(KEYS[1])
local from = last and last - ARGV[2] + 1
if not from or from <= tonumber(first) then
  return tonumber(first or 0)
end
local count, newest = #KEYS - 1, bucket_of(us, tonumber(ARGV[1]))
for at = newest - count + 1, newest do
  local list = KEYS[2 + at % count]
  local oldest = first_in(list)
  if oldest and oldest >= from then
    break
  elseif oldest and oldest + redis.call('LLEN', list) <= from then
    redis.call('UNLINK', list)
  elseif oldest then
    redis.call('LTRIM', list, from - oldest, -1)
  end
end
redis.call('SET', KEYS[1], head_line(last, us, epoch, from), 'PX', ARGV[3])
return from
