-- Extends the leases of permits.
--
-- uses _semaphores.lua
-- uses common/_time.lua
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 lease: ms
-- ARGV  2 how long the limit is kept: ms
-- ARGV  3… tokens of the permits, up to 500
-- Returns 1, or 0 if the lease of any of them had expired
local semaphore = semaphore_at(KEYS)
local lease, limit_ttl = tonumber(ARGV[1]), ARGV[2]
local now = microseconds()
local tokens = {unpack(ARGV, 3)}
local ends = redis.call('ZMSCORE', semaphore.holders, unpack(tokens))
local new_end, held = digits(now + lease * 1000), {}
for at, token in ipairs(tokens) do
  if ends[at] and tonumber(ends[at]) > now then
    held[#held + 1], held[#held + 2] = new_end, token
  end
end
-- PEXPIRE comes first: Redis never rejects it at maxmemory, nor the writes after it in the script.
redis.call('PEXPIRE', semaphore.limit, limit_ttl)
if #held > 0 then
  redis.call('ZADD', semaphore.holders, unpack(held))
end
keep_permits(semaphore.holders, lease)
return #held == 2 * #tokens and 1 or 0
