-- Removes one of a user's recent contacts.
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- ARGV  1 contact
-- Returns 1
local contacts, uses, contact = KEYS[1], KEYS[2], ARGV[1]

redis.call('ZREM', contacts, contact)
redis.call('HDEL', uses, contact)
return 1
