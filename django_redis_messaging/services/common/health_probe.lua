-- Writes keys and reads them.
--
-- KEYS  1… probe keys
-- ARGV  1 their TTL: ms
-- Returns the value read from each key: 1
local ttl = ARGV[1]
local values = {}
for at, key in ipairs(KEYS) do
  redis.call('SET', key, 1, 'PX', ttl)
  values[at] = tonumber(redis.call('GET', key))
end
return values
