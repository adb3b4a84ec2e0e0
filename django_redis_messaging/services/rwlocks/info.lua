-- Reads the state of a read-write lock.
--
-- uses _rwlocks.lua
-- uses common/_polls.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-6 read-write lock (_rwlocks.lua)
-- ARGV  1 maximum number of holders to list
-- Returns {server time (µs), fence of the latest grant, writer or nil, number of holders, number of waiting clients, then
-- token and end of the lease (µs) of each holder}: the leases that end last at the beginning
local rwlock, limit = rwlock_at(KEYS), tonumber(ARGV[1])
local now = microseconds()
local latest, writer = unpack(redis.call('HMGET', rwlock.grants, 'latest', 'writer'))
local last, ends = last_holder(rwlock.holders)
local info = {now, latest or '0', ends > now and last == writer and writer}
info[#info + 1] = count_active(rwlock.holders, now)
info[#info + 1] = count_active(rwlock.alive, now)
local from = '(' .. digits(now)
for _, part in ipairs(redis.call('ZREVRANGEBYSCORE', rwlock.holders, '+inf', from, 'WITHSCORES', 'LIMIT', 0, limit)) do
  info[#info + 1] = part
end
return info
