-- Request ids: what a request was answered is remembered for one window at least, two at most, in three
-- hashes used in turn. A hash expires half a window before its turn comes again, so that it never holds
-- answers of two turns. The server's clock alone decides.
local function turns(keys, window, now)
  local turn = math.floor(now / window)
  return keys[turn % 3 + 1], keys[(turn + 2) % 3 + 1], (turn + 2.5) * window
end

-- What a request was answered, if it is a repeat.
local function answer_to(request, keys, window, now)
  local current, previous = turns(keys, window, now)
  return redis.call('HGET', current, request) or redis.call('HGET', previous, request)
end

-- Remembers what a request is answered; returns what it was answered before, if it is a repeat.
local function remembered(request, answer, keys, window, now)
  local current, previous, expires = turns(keys, window, now)
  local before = redis.call('HGET', previous, request)
  if before then
    return before
  end
  if redis.call('HSETNX', current, request, answer) == 0 then
    return redis.call('HGET', current, request)
  end
  if redis.call('HLEN', current) == 1 then
    redis.call('PEXPIREAT', current, string.format('%.0f', expires))
  end
end
