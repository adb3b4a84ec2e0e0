-- Request ids: the answer to a request is recorded for at least one window (less 2 ms) and at most two, in two hashes
-- used by turns. A hash expires before its next turn. An answer extends the expiry of the turn's hash if it is missing or
-- too early: this is the first answer of the turn, or the window was shorter before.
-- Only the server's clock counts. `keys` are the two hashes. Where many answers are recorded, they are spread over
-- several pairs whose turns begin at different moments, `keys.offset` ms earlier: Redis deletes a hash that expires
-- in one go, and the deletion of a large one would delay other clients.

-- Returns the hash of the current turn, the hash of the previous one, and when the former expires (ms).
local function hashes_at(keys, window, now)
  local offset = keys.offset or 0
  local turn = math.floor((now + offset) / window)
  -- 2 ms early: Redis keeps a key in the ms of its expiry, and its clock may be a ms behind TIME
  return keys[turn % 2 + 1], keys[(turn + 1) % 2 + 1], (turn + 2) * window - offset - 2
end

-- Returns the recorded answer to a request; false for a new request.
local function find_answer(request, keys, window, now)
  local current, previous = hashes_at(keys, window, now)
  return redis.call('HGET', current, request) or redis.call('HGET', previous, request)
end

-- ms by which an expiry may be later than necessary, after the window was lowered; after the clock was set back, it
-- may be years
local MAX_EXCESS = 7 * 86400000

-- Keeps the hash of the current turn until `expires` (ms).
local function keep_until(expires, current, now)
  local ttl, needed = redis.call('PTTL', current), expires - now
  if ttl < needed - 1 or ttl > needed + MAX_EXCESS then -- its clock may be a ms ahead of TIME
    redis.call('PEXPIREAT', current, expires)
  end
end

-- Records the answer to a request. For a repeat, records nothing and returns the first answer.
local function record_answer_once(request, answer, keys, window, now)
  local current, previous, expires = hashes_at(keys, window, now)
  local earlier = redis.call('HGET', previous, request)
  if earlier then
    return earlier
  end
  local added = redis.pcall('HSETNX', current, request, answer)
  if type(added) == 'table' then -- refused, for example for lack of memory: a repeat still gets its answer
    return redis.call('HGET', current, request) or redis.call('HSETNX', current, request, answer)
  end
  if added == 0 then
    return redis.call('HGET', current, request)
  end
  keep_until(expires, current, now)
end

-- Records the answer to a request that is known to be new.
local function record_answer(request, answer, keys, window, now)
  local current, _, expires = hashes_at(keys, window, now)
  redis.call('HSET', current, request, answer)
  keep_until(expires, current, now)
end

-- Removes the answer to a request that this script has recorded, because what it stands for could not be written.
-- rare
local function forget_answer(request, keys)
  redis.call('HDEL', keys[1], request)
  redis.call('HDEL', keys[2], request)
end
