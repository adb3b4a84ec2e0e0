-- Removes one of a user's recent contacts.
--
-- KEYS  1 contacts
-- KEYS  2 uses
-- ARGV  1 contact
-- Returns 1
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
