-- Lists the waiting clients, in the order in which they will acquire permits.
--
-- uses _semaphores.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-5 semaphore (_semaphores.lua)
-- ARGV  1 maximum number of clients to list
-- Returns token and ticket of each client (flat)
local semaphore = semaphore_at(KEYS)
local size = tonumber(ARGV[1])
local now, found = microseconds(), {}
local first = redis.call('ZRANGE', semaphore.line, 0, size - 1, 'WITHSCORES')
for at = 1, #first, 2 do
  local expires = redis.call('ZSCORE', semaphore.waiting, first[at])
  if expires and tonumber(expires) > now then
    found[#found + 1], found[#found + 2] = first[at], first[at + 1]
  end
end
return found
