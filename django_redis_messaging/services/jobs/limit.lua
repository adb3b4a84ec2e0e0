-- Sets the number of jobs that may hold a permit at a time, whatever they say themselves; or ends that.
--
-- uses _records.lua
-- uses _waiting.lua
--
-- KEYS  1-15 records, see _records.lua
-- ARGV  1 permit:NAME, percent-encoded
-- ARGV  2 limit; empty: that of each job
-- Returns nothing
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
local records = records_at(KEYS)
local permit, limit = ARGV[1], ARGV[2]
if limit == '' then
  redis.call('HDEL', records.limits, permit)
else
  redis.call('HSET', records.limits, permit, limit)
end
-- If more are free, the claims that lease these promote the others.
promote_all(records, permit, PROMOTED)
wake_for_promoted()
