-- Reads until when messages were mailed to a user in a digest, and the clock.
--
-- reads only
-- uses _time.lua
--
-- KEYS  1 digest
-- Returns {now: ms, until: ms, or nil if there was none}
local digest = KEYS[1]

return {milliseconds(), redis.call('GET', digest)}
