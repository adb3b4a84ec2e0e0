-- Request ids: what a request was answered is remembered for one window at least, two at most, in two
-- hashes used in turn. A hash expires when its turn comes again; whoever is first in a turn gives it its
-- expiry, so that not even one that is still there is lost. The server's clock alone decides.
local function turns(keys, window, now)
  local turn = math.floor(now / window)
  return keys[turn % 2 + 1], keys[(turn + 1) % 2 + 1], (turn + 2) * window
end

-- What a request was answered, if it is a repeat.
local function answer_to(request, keys, window, now)
  local current, previous = turns(keys, window, now)
  return redis.call('HGET', current, request) or redis.call('HGET', previous, request)
end

-- Remembers what a request is answered; returns what it was answered before, if it is a repeat. `since` is
-- when this chat last remembered one: the first of a turn gives the turn's hash its expiry.
local function remembered(request, answer, keys, window, now, since)
  local current, previous, expires = turns(keys, window, now)
  local before = redis.call('HGET', previous, request)
  if before then
    return before
  end
  local added = redis.pcall('HSETNX', current, request, answer)
  if type(added) == 'table' then -- refused, for want of memory say: a repeat is still given its answer
    return redis.call('HGET', current, request) or redis.call('HSETNX', current, request, answer)
  end
  if added == 0 then
    return redis.call('HGET', current, request)
  end
  if math.floor(since / window) ~= math.floor(now / window) then
    redis.call('PEXPIREAT', current, string.format('%.0f', expires))
  end
end

-- Remembers what a request is answered, which is known not to be a repeat. Whoever is first in a turn gives
-- the turn's hash its expiry.
local function memorized(request, answer, keys, window, now)
  local current, _, expires = turns(keys, window, now)
  redis.call('HSET', current, request, answer)
  if redis.call('HLEN', current) == 1 then
    redis.call('PEXPIREAT', current, string.format('%.0f', expires))
  end
end
