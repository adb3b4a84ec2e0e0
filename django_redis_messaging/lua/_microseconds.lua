-- The server's clock, in µs.
local function microseconds()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
