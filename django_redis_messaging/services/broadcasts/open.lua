-- Creates a channel, or extends the TTL of an existing one; begins a new epoch if data was lost.
--
-- uses _broadcast.lua
-- uses common/_time.lua
-- uses common/_writes.lua
--
-- KEYS  1-5 broadcast (_broadcast.lua)
-- KEYS  6… ring of buckets
-- ARGV  1 how long an idle channel is kept: ms
-- ARGV  2 epoch in which a reader has read an event that the channel has lost, or ''
-- Returns "last-us-epoch-first"
local broadcast = broadcast_at(KEYS)
local idle_ttl, lost_epoch = ARGV[1], ARGV[2]
local last, us, epoch, first = read_head(broadcast.head)
if not last then
  check_types('XLEN', broadcast.bell)
  check_types('LLEN', unpack(KEYS, 6))
end
-- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it, so channels remain readable.
redis.call('PEXPIRE', broadcast.head, idle_ttl)
if last and epoch ~= lost_epoch then
  return format_head(last, us, epoch, first)
end
if not last then
  -- Remove what belongs to an earlier head: ids begin with 1 again.
  redis.call('UNLINK', broadcast.bell, unpack(KEYS, 6))
end
local new_epoch = digits(math.max(microseconds(), (epoch or 0) + 1))
local opened = format_head(last or 0, us or '0', new_epoch, first or 1)
redis.call('SET', broadcast.head, opened, 'PX', idle_ttl)
return opened
