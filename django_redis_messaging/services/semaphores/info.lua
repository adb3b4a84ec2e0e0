-- Reads the state of a semaphore, and lists permits and waiting clients.
--
-- uses _semaphores.lua
-- uses common/_polls.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 maximum number of permits to list
-- ARGV  2 maximum number of clients to list
-- Returns {limit or nil, number of permits held, number of waiting clients, {token and end of the lease (µs) of each
-- permit}, {token and ticket of each client}}: the leases that end first, and the order of the queue, at the beginning
local semaphore = semaphore_at(KEYS)
local max_permits, max_clients = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = microseconds()

local function list_permits()
  local held_after = '(' .. digits(now)
  return redis.call('ZRANGEBYSCORE', semaphore.holders, held_after, '+inf', 'WITHSCORES', 'LIMIT', 0, max_permits)
end

local function list_clients()
  local found = {}
  local first = redis.call('ZRANGE', semaphore.line, 0, max_clients - 1, 'WITHSCORES')
  for at = 1, #first, 2 do
    local expires = redis.call('ZSCORE', semaphore.waiting, first[at])
    if expires and tonumber(expires) > now then
      found[#found + 1], found[#found + 2] = first[at], first[at + 1]
    end
  end
  return found
end

return {
  redis.call('GET', semaphore.limit),
  count_active(semaphore.holders, now),
  count_active(semaphore.waiting, now),
  max_permits > 0 and list_permits() or {},
  max_clients > 0 and list_clients() or {},
}
