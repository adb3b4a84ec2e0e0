-- The state of a file channel. `files` maps the description of each announced file to its id, which grows with each
-- file; `positions` maps each consumer to the id of the last file that it has acked. A file that all consumers have
-- acked moves to `trash`, where it stays until its blocks, which are in another slot, are deleted. `state` is a hash:
--
--   used     bytes reserved for the file being written, the announced files, and those in the trash
--   limit    bytes that may be reserved, as given with the latest file
--   places   consumers that are expected, but have not come yet (a channel with a number of consumers)
--   number   the newest id: of a file, or of an entry in the streams `news` and `space`
--   last     id of the newest announced file
--   writing, size, source   the file being written: its id, its bytes, and the identity of the source file
--   news, space   newest entries of the streams, for which consumers and the publisher wait
--   final    1: no further file will be announced; closed    1: and all files are freed
--   run      a number: after the end of a channel, one of the same name has another one
--
-- `consumers` maps 'f' and a name to the fence of the consumer's lease, 's' and a name to the ms at which it was
-- last seen; the latter is kept when a consumer has left a final channel. The fence of the publisher is 'f' without a
-- name.
--
-- uses common/_time.lua

-- Names the keys of a channel, which are in the order of FileChannelKeys.all.
local function channel_at(keys)
  return {
    state = keys[1], consumers = keys[2], positions = keys[3], files = keys[4], trash = keys[5], published = keys[6],
    news = keys[7], space = keys[8],
  }
end

local IDLE_TTL = 30 * 86400000 -- ms for which an idle channel is kept

-- Returns the next number, which is greater than all before.
local function next_number(channel)
  local number = digits(math.max(tonumber(redis.call('HGET', channel.state, 'number') or 0) + 1, microseconds()))
  redis.call('HSET', channel.state, 'number', number)
  return number
end

-- Wakes the clients that wait for a stream, 'news' or 'space', which is a field of the state, too.
local function wake(channel, stream)
  local number = next_number(channel)
  redis.call('HSET', channel.state, stream, number)
  redis.call('XADD', channel[stream], 'MAXLEN', 1, number .. '-0', '', '')
end

-- Whether another client has the lease of a consumer, or of the publisher (''), by now. Records the fence. Only
-- files/begin.lua uses it for a publisher: without its record, a late one could write to a channel that has ended.
local function is_stale(channel, name, fence)
  local latest = tonumber(redis.call('HGET', channel.consumers, 'f' .. name) or 0)
  if latest < tonumber(fence) then
    redis.call('HSET', channel.consumers, 'f' .. name, fence)
  end
  return latest > tonumber(fence)
end

-- Whether the caller is the publisher that began last.
local function is_publisher(channel, fence)
  return redis.call('HGET', channel.consumers, 'f') == fence
end

-- Moves up to 500 files that all consumers have acked to the trash.
local function free_acked(channel)
  if tonumber(redis.call('HGET', channel.state, 'places') or 0) > 0 then
    return
  end
  local acked = redis.call('ZRANGE', channel.positions, 0, 0, 'WITHSCORES')[2] or '+inf'
  local freed = redis.call('ZRANGEBYSCORE', channel.files, '-inf', acked, 'WITHSCORES', 'LIMIT', 0, 500)
  for at = 1, #freed, 2 do
    local id = freed[at + 1]
    redis.call('ZADD', channel.trash, id, id .. ' ' .. string.match(freed[at], '^%d+ (%d+)'))
    redis.call('ZREM', channel.files, freed[at])
  end
end

-- Moves the file that is being written, if any, to the trash.
local function discard_written(channel)
  local id, size = unpack(redis.call('HMGET', channel.state, 'writing', 'size'))
  if id then
    redis.call('ZADD', channel.trash, id, id .. ' ' .. size)
    redis.call('HDEL', channel.state, 'writing', 'size', 'source')
  end
end

-- Lets a channel without files expire, unless it is closed and expires earlier. A file being written ends this.
local function expire_when_idle(channel)
  local is_idle = redis.call('ZCARD', channel.files) == 0 and redis.call('ZCARD', channel.trash) == 0
  local closed, writing = unpack(redis.call('HMGET', channel.state, 'closed', 'writing'))
  if is_idle and not closed and not writing then
    for _, key in pairs(channel) do
      redis.call('PEXPIRE', key, IDLE_TTL)
    end
  end
end

-- Appends up to 100 files of the trash to a reply; the client deletes their blocks.
local function with_trash(reply, channel)
  for _, member in ipairs(redis.call('ZRANGE', channel.trash, 0, 99)) do
    reply[#reply + 1] = member
  end
  return reply
end

-- Forgets a consumer; returns whether it was known.
local function remove_consumer(channel, name)
  redis.call('HDEL', channel.consumers, 'f' .. name, 's' .. name)
  return redis.call('ZREM', channel.positions, name) == 1
end
