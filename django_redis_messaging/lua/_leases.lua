-- Leases: what their holders say of them, and what becomes of those that run out.

-- How many dead jobs a queue keeps, and for how long (ms).
local function grave(most, age)
  return {most = tonumber(most), age = tonumber(age)}
end

local function buried(queue, records, id, state, now, grave)
  released(records, id, state.unique)
  state.status, state.moment, state.token = 'd', digits(now), '-'
  redis.call('HSET', records.states, id, text_of(state))
  redis.call('ZADD', queue.dead, digits(now), id)
  expired(records, queue.dead, digits(now - grave.age), 2)
  -- of those that died in the same ms, no more than are too many
  local over = redis.call('ZCARD', queue.dead) - grave.most
  if over > 0 then
    local oldest = redis.call('ZRANGE', queue.dead, 0, 0, 'WITHSCORES')
    expired(records, queue.dead, oldest[2], math.min(over, 2))
  end
end

-- Puts a job back, to be tried again; or buries it, when it has had its attempts.
local function tried(queue, records, id, state, due, now, grave)
  if state.attempts >= state.most then
    buried(queue, records, id, state, now, grave)
    return
  end
  state.status, state.moment, state.token = 'w', digits(math.max(due, now)), '-'
  redis.call('HSET', records.states, id, text_of(state))
  queued(queue, id, state.priority, due, now)
end

-- The ms that is `wait` ms from now; a part of this one has gone, so that it would be early without one more.
local function later(now, wait)
  return wait > 0 and now + wait + 1 or now
end

-- The state of a job whose lease is `fence` and `token`; nil where somebody else has it, or nobody.
local function held(records, id, fence, token)
  local text = redis.call('HGET', records.states, id)
  local state = text and state_of(text)
  if state and state.status == 'r' and state.fence == fence and state.token == token then
    return state
  end
end

-- What a holder says of its job: done, again, dead or back (given back: the attempt doesn't count). `value`
-- is how long to keep the result, or to wait before the next attempt (ms). Returns 1, or 0 when stale.
local function settled(queue, records, id, fence, token, verdict, value, line, now, grave)
  local state = held(records, id, fence, token)
  -- Removing is first: without memory the rest is refused, unless a removal came before.
  if redis.call('ZREM', queue.leased, state and id or '') == 0 then
    return 0
  end
  noted(records, id, line)
  if verdict == 'done' then
    ended(records, id, state, 's', now, tonumber(value))
  elseif verdict == 'again' then
    tried(queue, records, id, state, later(now, tonumber(value)), now, grave)
  elseif verdict == 'dead' then
    buried(queue, records, id, state, now, grave)
  else
    state.attempts = state.attempts - 1
    state.workers = string.match(state.workers, '^(.*),[^,]*$') or '-'
    tried(queue, records, id, state, later(now, tonumber(value)), now, grave)
  end
  return 1
end

-- Leases that ran out: back into the line, or dead. At most 100 at a time.
local function recovered(queue, records, now, grave)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue.leased, '-inf', digits(now), 'LIMIT', 0, 100)) do
    local text = redis.call('HGET', records.states, id)
    if text then
      local state = state_of(text)
      noted(records, id, 'L' .. state.attempts)
      tried(queue, records, id, state, now, now, grave)
    end
    redis.call('ZREM', queue.leased, id)
  end
end

-- Jobs that are due: into the line, the earliest first. At most 500 at a time.
local function promoted(queue, records, now)
  local due = redis.call('ZRANGEBYSCORE', queue.delayed, '-inf', digits(now), 'LIMIT', 0, 500)
  if #due == 0 then
    return
  end
  local ids, priorities = {}, {}
  for at, text in ipairs(redis.call('HMGET', records.states, unpack(due))) do
    if text then
      ids[#ids + 1] = due[at]
      priorities[#priorities + 1] = string.match(text, '^%a (%S+)')
    end
  end
  if #ids > 0 then
    made_ready(queue, ids, priorities)
  end
  redis.call('ZREM', queue.delayed, unpack(due))
end

-- Does what is due by time; returns the ms at which something will be next, or nil.
local function swept(queue, records, now, grave)
  local leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  if leased[2] and tonumber(leased[2]) <= now then
    recovered(queue, records, now, grave)
    leased = redis.call('ZRANGE', queue.leased, 0, 0, 'WITHSCORES')
  end
  local delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  if delayed[2] and tonumber(delayed[2]) <= now then
    promoted(queue, records, now)
    delayed = redis.call('ZRANGE', queue.delayed, 0, 0, 'WITHSCORES')
  end
  return tonumber(delayed[2]), tonumber(leased[2])
end
