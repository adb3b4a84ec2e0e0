-- Lists the clients that wait for a read-write lock.
--
-- uses _rwlocks.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-6 read-write lock (_rwlocks.lua)
-- ARGV  1 maximum number of readers to list, and of writers
-- Returns {{token and ticket of each reader}, {the same of each writer}}, in the order of their tickets
local rwlock, limit = rwlock_at(KEYS), tonumber(ARGV[1])
local now = microseconds()

local function list_clients(queue)
  local found, first = {}, redis.call('ZRANGE', queue, 0, limit - 1, 'WITHSCORES')
  for at = 1, #first, 2 do
    local polls_until = redis.call('ZSCORE', rwlock.alive, first[at])
    if polls_until and tonumber(polls_until) > now then
      found[#found + 1], found[#found + 2] = first[at], first[at + 1]
    end
  end
  return found
end

return {list_clients(rwlock.readers), list_clients(rwlock.writers)}
