-- Lists the waiting clients, in the order in which they will acquire permits.
--
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 queue
-- KEYS  2 waiting
-- ARGV  1 maximum number of clients to list
-- Returns token and ticket of each client (flat)
local queue, waiting = KEYS[1], KEYS[2]
local limit = tonumber(ARGV[1])
local now, found = microseconds(), {}
local first = redis.call('ZRANGE', queue, 0, limit - 1, 'WITHSCORES')
for at = 1, #first, 2 do
  local expires = redis.call('ZSCORE', waiting, first[at])
  if expires and tonumber(expires) > now then
    found[#found + 1], found[#found + 2] = first[at], first[at + 1]
  end
end
return found
