-- Removes the oldest events of a channel that exceeds its maximum length.
--
-- uses _broadcast.lua
--
-- KEYS  1-5 broadcast (_broadcast.lua)
-- KEYS  6… ring of buckets
-- ARGV  1 length of a bucket: ms
-- ARGV  2 maximum number of events in the channel
-- ARGV  3 how long an idle channel is kept: ms
-- Returns the first id that remains
local broadcast = broadcast_at(KEYS)
local length, max_length, idle_ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local last, us, epoch, first = read_head(broadcast.head)
local from = last and last - max_length + 1
if not from or from <= tonumber(first) then
  return tonumber(first or 0)
end
local count, newest_bucket = #KEYS - 5, bucket_at(us, length)
for number = newest_bucket - count + 1, newest_bucket do
  local bucket = KEYS[6 + number % count]
  local oldest = first_id(bucket)
  if oldest and oldest >= from then
    break
  elseif oldest and oldest + redis.call('LLEN', bucket) <= from then
    redis.call('UNLINK', bucket)
  elseif oldest then
    redis.call('LTRIM', bucket, from - oldest, -1)
  end
end
redis.call('SET', broadcast.head, format_head(last, us, epoch, from), 'PX', idle_ttl)
return from
