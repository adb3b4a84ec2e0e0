-- Writes, and reads what it wrote.
--
-- KEYS  1… probes
-- ARGV  1 ms after which they expire
-- Returns of each probe what was read: 1
local found = {}
for at, key in ipairs(KEYS) do
  redis.call('SET', key, 1, 'PX', ARGV[1])
  found[at] = tonumber(redis.call('GET', key))
end
return found
