-- Begins publishing: registers consumers, and discards a file that an earlier publisher left half-written.
--
-- uses _files.lua
--
-- KEYS  1-8 channel (_files.lua)
-- ARGV  1 fence of the publisher's lease
-- ARGV  2 number of consumers, whatever their names; 0 if they are named
-- ARGV  3 1: begin anew if the last file was published and all files are freed, else 0
-- ARGV  4… names of consumers
-- Returns {'stale'}; {'consumers', places, name…}: the channel has other consumers, these, and expects some more; or
-- {'final', member…} or {'ok', member…} with members of the trash
local channel = channel_at(KEYS)
local fence, expected, reopen = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local names, is_named = {}, {}
for at = 4, #ARGV do
  names[#names + 1], is_named[ARGV[at]] = ARGV[at], true
end

-- A late publisher that opens a channel again must not revive one that was deleted since.
if reopen and not is_publisher(channel, fence) or is_stale(channel, '', fence) then
  return {'stale'}
end
local final, closed, run, number = unpack(redis.call('HMGET', channel.state, 'final', 'closed', 'run', 'number'))
local is_freed = redis.call('ZCARD', channel.files) == 0 and redis.call('ZCARD', channel.trash) == 0
if closed or (final and reopen and is_freed) then -- all consumers have received all files: what follows is new
  redis.call('HDEL', channel.state, 'final', 'closed', 'places')
  redis.call('DEL', channel.positions, channel.consumers)
  redis.call('HSET', channel.consumers, 'f', fence)
  run = nil
  if closed then
    redis.call('DEL', channel.published)
  end
elseif final then
  discard_written(channel)
  return with_trash({'final'}, channel)
end

local known, added, is_known = redis.call('ZRANGE', channel.positions, 0, -1), {}, {}
local places = tonumber(redis.call('HGET', channel.state, 'places') or 0)
local is_complete = true -- whether the given consumers include the known ones
for _, name in ipairs(known) do
  is_known[name] = true
  is_complete = is_complete and (expected > 0 or is_named[name])
end
for _, name in ipairs(names) do
  if not is_known[name] then
    added[#added + 1] = name
  end
end
if not is_complete or (expected > 0 and expected - #known or #added) < places then
  return {'consumers', places, unpack(known)}
end

-- Ids must grow even if the clock was set back since the end of an earlier channel: the fence did.
redis.call('HSET', channel.state, 'number', digits(math.max(tonumber(number or 0), tonumber(fence))))
if not run then
  redis.call('HSET', channel.state, 'run', next_number(channel))
end
local last = redis.call('HGET', channel.state, 'last') or '0'
for at, name in ipairs(added) do
  redis.call('ZADD', channel.positions, at <= places and '0' or last, name)
end
redis.call('HSET', channel.state, 'places', expected > 0 and expected - #known or 0)
discard_written(channel)
wake(channel, 'news')
expire_when_idle(channel)
return with_trash({'ok'}, channel)
