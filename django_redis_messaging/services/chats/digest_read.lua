-- Reads what the digest of a user depends on, and the clock.
--
-- reads only
-- uses common/_time.lua
--
-- KEYS  1 digest: until when messages were mailed
-- KEYS  2 choices: the user's choices
-- KEYS  3 blocks: whom the user has blocked
-- Returns {now: ms, until: ms, or nil if there was no digest, the choice "digests", or nil, blocked people}
local digest, choices, blocks = KEYS[1], KEYS[2], KEYS[3]

return {
  milliseconds(),
  redis.call('GET', digest),
  redis.call('HGET', choices, 'digests'),
  redis.call('ZRANGE', blocks, 0, -1),
}
