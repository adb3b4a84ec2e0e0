-- Reads whether a user has blocked another one, after the user's membership in their direct chat was suspended or
-- resumed: the pages that show the user's chats read them again.
--
-- uses common/_live.lua
--
-- KEYS  1 blocks
-- KEYS  2 index: the user's chats
-- ARGV  1 other user
-- Returns 1 or 0
local blocks, index = KEYS[1], KEYS[2]
local other = ARGV[1]

publish_hint('u', index)
return redis.call('ZSCORE', blocks, other) and 1 or 0
