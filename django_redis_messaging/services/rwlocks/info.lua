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
-- token, end of the lease (µs) and fence of each holder}: the leases that end last at the beginning
local rwlock, limit = rwlock_at(KEYS), tonumber(ARGV[1])
local now = microseconds()
local latest, writer = unpack(redis.call('HMGET', rwlock.grants, 'latest', 'writer'))
local last, ends = last_holder(rwlock.holders)
local info = {now, latest or '0', ends > now and last == writer and writer}
info[#info + 1] = count_active(rwlock.holders, now)
info[#info + 1] = count_active(rwlock.alive, now)
local from = '(' .. digits(now)
local found = redis.call('ZREVRANGEBYSCORE', rwlock.holders, '+inf', from, 'WITHSCORES', 'LIMIT', 0, limit)
for at = 1, #found, 2 do
  info[#info + 1], info[#info + 2] = found[at], found[at + 1]
  info[#info + 1] = redis.call('HGET', rwlock.grants, found[at]) or '0'
end
return info
