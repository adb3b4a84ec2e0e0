-- Lists a user's recent contacts with how often each was used, the latest first.
--
-- reads only
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- Returns {contact, …} and {count and token, …}, in one list
local contacts = redis.call('ZRANGE', KEYS[1], 0, -1, 'REV')
if #contacts == 0 then
  return {{}, {}}
end
return {contacts, redis.call('HMGET', KEYS[2], unpack(contacts))}
