-- Reads whether a user has blocked another one, after the user's membership in their direct chat was suspended or
-- resumed: the pages that show the user's chats read them again.
--
-- uses _user.lua
-- uses common/_hints.lua
--
-- KEYS  1-5 user (_user.lua)
-- ARGV  1 other user
-- Returns 1 or 0
local keys = user_at(KEYS)
local other = ARGV[1]

publish_hint('u', keys.chats)
return redis.call('ZSCORE', keys.blocks, other) and 1 or 0
