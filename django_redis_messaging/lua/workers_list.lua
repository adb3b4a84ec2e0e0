-- The workers, or listeners, of a slot, as each told of itself.
--
-- uses _clock.lua
-- reads only
--
-- KEYS  1 workers
-- Returns the server's clock (ms), then id and line by turns
local found = redis.call('HGETALL', KEYS[1])
return {clock(), unpack(found)}
