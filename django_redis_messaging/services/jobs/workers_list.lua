-- Lists the workers, or listeners, of a slot.
--
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 workers
-- Returns the server's clock (ms), then id and heartbeat of each, flat; the heartbeat as in jobs/workers_beat.lua
local workers = KEYS[1]
return {milliseconds(), unpack(redis.call('HGETALL', workers))}
