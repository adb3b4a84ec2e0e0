-- Reads how long ago a poller looked at the periodic tasks. If none has, the time counts from the first call on.
--
-- uses _periodic.lua
-- uses common/_time.lua
--
-- KEYS  1 periodic
-- Returns ms
local periodic, now = KEYS[1], milliseconds()
local polled = read_polled(periodic, now)
if not polled then
  redis.call('HSET', periodic, 'polled', digits(now))
end
return now - (polled or now)
