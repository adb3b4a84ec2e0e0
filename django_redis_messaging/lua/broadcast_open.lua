-- Makes a channel that isn't there, keeps one that is, and begins a new epoch where data was lost.
--
-- uses _digits.lua
-- uses _types.lua
-- uses _channel.lua
--
-- KEYS  1 head
-- KEYS  2 bell
-- KEYS  3… the ring of buckets
-- ARGV  1 how long an idle channel is kept: ms
-- ARGV  2 epoch in which a reader knows an event that is not there any more, or ''
-- Returns "last-us-epoch-first"
local last, us, epoch, first = head_of(KEYS[1])
if not last then
  check_types('XLEN', KEYS[2])
  check_types('LLEN', unpack(KEYS, 3))
end
-- Redis refuses no PEXPIRE for want of memory, nor what a script writes after it: reading works when it is full.
redis.call('PEXPIRE', KEYS[1], ARGV[1])
if last and epoch ~= ARGV[2] then
  return head_line(last, us, epoch, first)
end
if not last then
  -- What an earlier head has left behind: ids begin with 1 again.
  redis.call('UNLINK', unpack(KEYS, 2))
end
local time = redis.call('TIME')
local line = head_line(last or 0, us or '0', digits(math.max(time[1] * 1000000 + time[2], (epoch or 0) + 1)), first or 1)
redis.call('SET', KEYS[1], line, 'PX', ARGV[1])
return line
