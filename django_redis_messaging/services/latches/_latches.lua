-- Latches. `state` holds the fields of the present round: `round`, a number that grows with each round (the time of its
-- beginning in µs, or the previous round plus 1); `count`, the events that open it; `remaining`, those of them that are
-- missing; `opened`, the latest round that has opened, or 0; `created`, the round with which the latch was created.
--
-- Clients that wait since round 5 read the stream `opening` from this number on. Its one entry is the latest opening,
-- with the round as its id, or the deletion of the latch, with a later id. `opened` of the entry is that of the state
-- then, so clients that were woken by the opening return true even if the latch was deleted before they polled.
--
-- uses common/_time.lua

local OPENING_TTL = 60000 -- ms; a waiting client polls more often than that

-- The keys of a latch, in the order of all its scripts.
local function latch_at(keys)
  return {state = keys[1], counted = keys[2], opening = keys[3], requests = {keys[4], keys[5]}}
end

-- The fields of the state as numbers; nil without one.
local function read_state(key)
  local fields = redis.call('HMGET', key, 'round', 'count', 'remaining', 'opened', 'created')
  if fields[1] then
    return {
      round = tonumber(fields[1]),
      count = tonumber(fields[2]),
      remaining = tonumber(fields[3]),
      opened = tonumber(fields[4]),
      created = tonumber(fields[5]),
    }
  end
end

-- The number of the latest entry of the stream, and the latest round that had opened then; 0 and 0 without an entry.
local function latest_opening(opening)
  local entry = redis.call('XREVRANGE', opening, '+', '-', 'COUNT', 1)[1]
  if not entry then
    return 0, 0
  end
  return tonumber(string.match(entry[1], '^%d+')), tonumber(entry[2][2])
end

-- Stores the beginning of a round, and returns its state. Callers have written before.
local function begin_round(latch, previous, count)
  local number, opened = latest_opening(latch.opening)
  if previous then
    number, opened = math.max(number, previous.round), previous.opened
  end
  local round = math.max(microseconds(), number + 1)
  local created = previous and previous.created or round
  local state = {round = round, count = count, remaining = count, opened = opened, created = created}
  redis.call('UNLINK', latch.counted)
  redis.call('HSET', latch.state, 'round', digits(round), 'created', digits(created))
  redis.call('HSET', latch.state, 'count', count, 'remaining', count, 'opened', digits(opened))
  return state
end

-- Wakes the clients that wait since the round of this number or an earlier one. Callers have written before.
local function wake_clients(opening, number, opened)
  redis.call('XADD', opening, 'MAXLEN', 1, digits(number) .. '-0', 'opened', digits(opened))
  redis.call('PEXPIRE', opening, OPENING_TTL)
end
