-- Lists a user's recent contacts, the latest first, with the number of uses of each.
--
-- reads only
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- Returns {{contact, …}, {number of uses of each, …}}
local contacts, uses = KEYS[1], KEYS[2]

local names = redis.call('ZRANGE', contacts, 0, -1, 'REV')
if #names == 0 then
  return {{}, {}}
end
return {names, redis.call('HMGET', uses, unpack(names))}
