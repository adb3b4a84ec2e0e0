-- The server's clock, the only one that scripts use. It doesn't advance while a script runs.
local function microseconds()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function milliseconds()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A number as text with all its digits, as keys, scores and replies need it. tostring() and .. keep 14 digits: enough
-- for ms and for what is counted, not for µs.
local function digits(number)
  return string.format('%.0f', number)
end
