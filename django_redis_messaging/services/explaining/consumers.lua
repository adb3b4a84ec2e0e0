-- Lists the consumers of a file channel that have acked least, with what they have not acked.
--
-- reads only
-- uses files/_files.lua
--
-- KEYS  1-8 channel (files/_files.lua)
-- ARGV  1 maximum number of consumers
-- Returns {consumers that are expected but have not come yet, then for each that has not acked all files: name, number of
-- these files, id of the first of them, ms at which it was last seen or 0}; {} without a channel
local channel = channel_at(KEYS)
local count = tonumber(ARGV[1])
if redis.call('EXISTS', channel.state) == 0 then
  return {}
end
local reply = {tonumber(redis.call('HGET', channel.state, 'places') or 0)}
local found = redis.call('ZRANGE', channel.positions, 0, count - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  local after = '(' .. found[at + 1]
  local first = redis.call('ZRANGEBYSCORE', channel.files, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if first[2] then
    reply[#reply + 1] = found[at]
    reply[#reply + 1] = redis.call('ZCOUNT', channel.files, after, '+inf')
    reply[#reply + 1] = first[2]
    reply[#reply + 1] = redis.call('HGET', channel.consumers, 's' .. found[at]) or '0'
  end
end
return reply
