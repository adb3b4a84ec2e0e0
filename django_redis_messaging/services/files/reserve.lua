-- Reserves space for a file and gives it an id, unless this file was published before.
--
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 fence of the publisher's lease
-- ARGV  2 identity of the source file
-- ARGV  3 size of the file: bytes
-- ARGV  4 maximum number of bytes in the channel
-- ARGV  5 maximum number of files in the channel
-- Returns {'stale'}; {'known'}: it was published before; {'final'}: the channel takes no further files,
-- {'finished'}: and all are freed; {'ok', id}; or {'wait', entry, member…}: no space, the newest entry of the stream
-- `space`, members of the trash
local channel = channel_at(KEYS)
local fence, identity, size = ARGV[1], ARGV[2], tonumber(ARGV[3])
local limit, max_files = tonumber(ARGV[4]), tonumber(ARGV[5])

if not is_publisher(channel, fence) then
  return {'stale'}
end
if redis.call('ZSCORE', channel.published, identity) then
  redis.call('ZADD', channel.published, digits(milliseconds()), identity)
  return {'known'}
end
local final, writing, source, used, space =
  unpack(redis.call('HMGET', channel.state, 'final', 'writing', 'source', 'used', 'space'))
if final then
  local is_freed = redis.call('ZCARD', channel.files) == 0 and redis.call('ZCARD', channel.trash) == 0
  return {is_freed and 'finished' or 'final'}
end
if writing and source == identity then -- a repeat after a lost reply
  return {'ok', writing}
end
used = tonumber(used or 0)
if used + size > limit or redis.call('ZCARD', channel.files) >= max_files then
  return with_trash({'wait', space or '0'}, channel)
end
local id = next_number(channel)
redis.call('HSET', channel.state, 'used', digits(used + size), 'limit', digits(limit),
  'writing', id, 'size', digits(size), 'source', identity)
for _, key in ipairs({channel.state, channel.consumers, channel.positions, channel.published}) do
  redis.call('PERSIST', key)
end
return {'ok', id}
