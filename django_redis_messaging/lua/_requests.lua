-- Request ids: what a request was answered is remembered for one window at least, two at most, in three
-- hashes used in turn. A hash expires half a window before its turn comes again, so that it never holds
-- answers of two turns. The server's clock alone decides.
local function turns(keys, window, now)
  local turn = math.floor(now / window)
  return keys[turn % 3 + 1], keys[(turn + 2) % 3 + 1], (turn + 2.5) * window
end

local function answer_to(request, keys, window, now)
  local current, previous = turns(keys, window, now)
  return redis.call('HGET', current, request) or redis.call('HGET', previous, request)
end

local function remember(request, answer, keys, window, now)
  local current, _, expires = turns(keys, window, now)
  redis.call('HSET', current, request, answer)
  redis.call('PEXPIREAT', current, string.format('%.0f', expires))
end
