-- Reads names of periods in the order of their bytes, without those that have expired.
--
-- reads only
-- uses common/_time.lua
--
-- KEYS  1 periods
-- KEYS  2 expiries
-- ARGV  1 name after which to begin, or '' to begin at the first
-- ARGV  2 maximum number of names to examine: up to 1000
-- Returns {name after which to read on, or '' at the end; {name, …}}
local periods, expiries = KEYS[1], KEYS[2]
local after, limit = ARGV[1], tonumber(ARGV[2])
local names = redis.call('ZRANGEBYLEX', periods, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
if #names == 0 then
  return {'', {}}
end
local members, alive, now = {}, {}, milliseconds()
for at, name in ipairs(names) do
  members[at] = 'p' .. name
end
for at, expires in ipairs(redis.call('ZMSCORE', expiries, unpack(members))) do
  if expires and tonumber(expires) >= now then -- a key still exists in the ms in which it expires
    alive[#alive + 1] = names[at]
  end
end
return {#names < limit and '' or names[#names], alive}
