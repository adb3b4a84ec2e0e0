-- Jobs that were at the head of the queue and wait again: parked ones, and those that were released.
--
-- Parked jobs wait for what they need to be leased: locks and permits, which other jobs hold until their leases end; tokens
-- of rates, which come with time; and the end of a pause of their task.
--
-- A job's field `needs` has them, separated by commas. Names are percent-encoded:
--   lock:NAME                one job holds it
--   permit:NAME/LIMIT        so many jobs hold it, or as many as `limits` says
--   rate:NAME/COUNT/PERIOD   so many leases begin in a period (ms), see read_rate
-- A job of a paused task waits for pause:TASK.
--
-- A claim leases a job if all that it needs is free, and takes all. Else it parks the job on the first need that is
-- not: without a lease, an attempt or a lane. The job goes from `ready` to `parked`, and its state gets `blocked` and
-- `place`. `lines` has the queues in which jobs are parked on a need. The name of a need there, and in `held`, is
-- without the limit.
--
-- What frees a need promotes the first job that is parked on it, in each queue: to `ready`, before all others of its
-- priority. Its state keeps `blocked` until it is leased. If a promoted job is leased and the need
-- is still free, or is parked on something else, or is taken out, the next one is promoted. So no job stays parked on a
-- free need; and since each queue has a promoted job of its own, a queue without workers holds up no other.
--
-- A job that is released without a delay is ready again, before all others of its priority, too. Among these, jobs are in
-- the order in which they were parked or leased first: that is their `place`, which they keep until an attempt ends.
--
-- Promotions write to the queues of the parked jobs, which may not be among the KEYS. Their keys have to be computed;
-- they are in the slot of the KEYS.
--
-- uses _ended.lua
-- uses _places.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _tags.lua
-- uses common/_time.lua

-- Jobs that one claim parks.
local MAX_PARKINGS = 200
local parkings_left = MAX_PARKINGS
-- Queues in which what becomes free promotes jobs.
local MAX_LINES = 100
-- Jobs that are promoted together, where more than one is free.
local PROMOTED = 4

-- What this script knows of needs, by their names: of a rate see read_rate; else {held = number of jobs that hold it,
-- limit = what `limits` says, or nil}.
local known = {}
-- The queues in which this script has promoted or put back jobs, by their bells: {bell = …, first = the first of their
-- places}.
local promoted = {}
-- Jobs that this script has leased or parked.
local turns = 0
-- What is paused: {["queue:NAME"] = true, ["task:NAME"] = true}; `tasks`: whether a task is.
local paused = {}

-- rare
local function note_paused(names)
  for _, name in ipairs(names) do
    paused[name] = true
    paused.tasks = paused.tasks or string.sub(name, 1, 5) == 'task:'
  end
end

-- Reads what is paused.
local function read_paused(records)
  local names = redis.call('HKEYS', records.paused)
  if #names > 0 then
    note_paused(names)
  end
end

-- The name of a queue as its keys have it.
local function name_of(queue)
  return string.match(queue.ready, ':queue:([^:]*):ready$')
end

-- rare
local function is_named_in_paused(queue)
  return paused['queue:' .. name_of(queue)]
end

-- Whether no job of the queue is leased now.
local function is_queue_paused(queue)
  return next(paused) and is_named_in_paused(queue)
end

-- The range of the members that begin with a name and a space, for commands by LEX.
local function lex_range(name)
  return '[' .. name .. ' ', '(' .. name .. '!'
end

-- The moment (µs) of the next job that is leased or parked. They differ by two: places of jobs without a group are even.
local function next_moment(us)
  turns = turns + 1
  return us + 2 * turns
end

-- rare
local function format_place(priority, moment)
  return string.format('%03d%017.0f', 100 - priority, moment)
end

-- Makes a job ready, before all of its priority that were not at the head of the queue before. `text`: its state. `turn`: its
-- place, without the priority.
-- rare
local function put_first(queue, id, text, turn)
  local priority, group = priority_of(text), group_of(text)
  local place = (100 - priority) * BAND + turn % HALF
  place = place - place % 2 + (group and 1 or 0)
  redis.call('ZADD', queue.ready, digits(place), id)
  local before = promoted[queue.bell]
  promoted[queue.bell] = {bell = queue.bell, first = math.min(place, before and before.first or place)}
  if group then
    redis.call('HINCRBY', queue.groups, 'jobs ' .. priority .. ' ' .. group, '1')
  end
end

-- Makes a job ready whose lease has ended: no other one passes it that was behind it when it was leased.
-- rare
local function put_back(records, queue, id, state)
  state.place = state.place == '0' and format_place(state.priority, state.fence) or state.place
  local text = format_state(state)
  redis.call('HSET', records.states, id, text)
  put_first(queue, id, text, string.sub(state.place, 4))
end

-- Promotes the first `count` jobs of a queue that are parked on a need.
-- rare
local function promote(records, queue, name, count)
  local from, till = lex_range(name)
  local parked = redis.call('ZRANGEBYLEX', queue.parked, from, till, 'LIMIT', 0, count)
  if #parked < count then
    redis.call('ZREM', records.lines, name .. ' ' .. name_of(queue))
  end
  if #parked == 0 then
    return
  end
  local places, ids = {}, {}
  for at, member in ipairs(parked) do
    places[at], ids[at] = string.match(member, '^%S+ %d%d%d(%d+) (.*)$')
  end
  redis.call('ZREM', queue.parked, unpack(parked))
  local texts = redis.call('HMGET', records.states, unpack(ids))
  for at, text in ipairs(texts) do
    if text then
      put_first(queue, ids[at], text, places[at])
    end
  end
end

-- Promotes the first `count` jobs of each queue that are parked on a need. Returns whether there may be more queues.
local function promote_all(records, name, count)
  local from, till = lex_range(name)
  local lines = redis.call('ZRANGEBYLEX', records.lines, from, till, 'LIMIT', '0', MAX_LINES)
  for _, member in ipairs(lines) do
    promote(records, queue_named(key_named(records, 'queue:' .. string.sub(member, #name + 2))), name, count)
  end
  return #lines == MAX_LINES
end

-- Wakes workers for the jobs that the script has promoted or put back; called at its end.
local function wake_for_promoted()
  for _, queue in pairs(promoted) do
    ring_bell(queue)
  end
end

-- rare
local function release_held(records, id, needs)
  for need in string.gmatch(needs, '[^,]+') do
    local name = string.match(need, '^permit:[^/]*') or need
    if redis.call('ZREM', records.held, name .. ' ' .. id) == 1 then
      known[name] = nil
      promote_all(records, name, 1)
    end
  end
end

-- Frees what a job holds whose lease has ended.
local function release_needs(records, id, state)
  local needs = field(state, 'needs')
  if needs then
    release_held(records, id, needs)
  end
end

-- Takes a waiting job out of the queue, wherever it waits; returns 0 if it doesn't wait there.
local function take_out(records, queue, id, state)
  local removed = remove_waiting(queue, id, state)
  if state.blocked ~= '-' and removed == 0 then
    removed = redis.call('ZREM', queue.parked, state.blocked .. ' ' .. state.place .. ' ' .. id)
  elseif state.blocked ~= '-' then
    promote(records, queue, state.blocked, 1)
  end
  if removed > 0 then
    state.blocked, state.place = '-', '0'
  end
  return removed
end

-- Gives a waiting job what another one with its unique key is pushed with: it begins anew, as that one would, but stays in
-- its batch. One that this script has not queued yet gets the payload only.
-- rare
local function replace_job(queue, records, id, payload, due, now, priority, max_attempts, more)
  local state = read_state(records, id)
  if state.status ~= 'waiting' then
    return
  end
  redis.call('HSET', records.jobs, id, payload)
  if take_out(records, queue, id, state) == 0 then
    return
  end
  remove_tags(records, id, state.more)
  local batch = field(state, 'batch')
  state.more = ' ' .. with_moments(more, now) .. (batch and ' batch=' .. batch or '')
  add_tags(records, id, state.more)
  redis.call('HDEL', records.outcomes, id)
  state.attempts, state.lost, state.first, state.last, state.by = '0', '0', '0', '0', '-'
  state.pushed, state.max_attempts, state.priority, state.moment = digits(now), max_attempts, priority, digits(due)
  write_state(records, id, state)
  enqueue(queue, records, id, priority, due, now, state.more)
  ring_bell(queue) -- also for a job that was promoted
end

-- A rate: the generic cell rate algorithm (ITU-T I.371, Annex A), with a burst of `count`. `full` is when all tokens
-- will be free (µs); a lease that takes one adds an interval. If the clock was set back, no more are taken than if
-- all had been used just now.
-- rare
local function read_rate(records, name, us)
  local count, period = string.match(name, '/(%d+)/(%d+)$')
  local interval = math.ceil(period * 1000 / count)
  local full = tonumber(redis.call('ZSCORE', records.rates, name) or us)
  full = math.max(math.min(full, us + count * interval), us)
  local free = math.floor((us + count * interval - full) / interval)
  return {free = free, full = full, interval = interval, count = tonumber(count)}
end

-- rare
local function read_permits(records, name)
  local from, till = lex_range(name)
  local is_permit = string.sub(name, 1, 7) == 'permit:'
  return {
    held = redis.call('ZLEXCOUNT', records.held, from, till),
    limit = is_permit and tonumber(redis.call('HGET', records.limits, name) or nil),
  }
end

-- Returns how many jobs can have this now, as far as this need says; what is known of it; and its name.
-- rare
local function read_need(records, need, us)
  local name, limit = string.match(need, '^(permit:[^/]*)/(%d+)')
  name = name or need
  if not known[name] then
    local is_rate = string.sub(need, 1, 5) == 'rate:'
    known[name] = is_rate and read_rate(records, name, us) or read_permits(records, name)
  end
  local found = known[name]
  return found.free or (found.limit or tonumber(limit or 1)) - found.held, found, name
end

-- The name of the first need of a job that is not free; nil if it can be leased.
-- rare
local function find_blocked(records, state, us)
  local task = paused.tasks and field(state, 'task')
  if task and paused['task:' .. task] then
    return 'pause:' .. task
  end
  for need in string.gmatch(field(state, 'needs') or '', '[^,]+') do
    local free, _, name = read_need(records, need, us)
    if free < 1 then
      return name
    end
  end
end

-- rare
local function take_token(records, name, rate, us)
  rate.full, rate.free = rate.full + rate.interval, rate.free - 1
  redis.call('ZADD', records.rates, digits(rate.full), name)
  local over = redis.call('ZRANGEBYSCORE', records.rates, '-inf', digits(us), 'LIMIT', 0, 2)
  if #over > 0 then
    redis.call('ZREM', records.rates, unpack(over))
  end
end

-- Takes all that a job needs. `holds`: whether the job has a lease, whose end frees what it holds.
-- rare
local function take_needs(records, id, state, us, holds)
  for need in string.gmatch(field(state, 'needs') or '', '[^,]+') do
    local _, found, name = read_need(records, need, us)
    if found.full then
      take_token(records, name, found, us)
    elseif holds then
      found.held = found.held + 1
      redis.call('ZADD', records.held, '0', name .. ' ' .. id)
    end
  end
end

-- Has a sweep of the queue promote jobs when the next token of a rate is free. Returns that moment: ms.
-- rare
local function await_token(records, queue, name)
  local rate = known[name]
  local moment = math.ceil((rate.full - (rate.count - 1) * rate.interval) / 1000)
  redis.call('ZADD', records.tokens, digits(moment), name)
  redis.call('ZADD', queue.delayed, 'LT', digits(moment), MARKER)
  queue.next_token = math.min(queue.next_token or math.huge, moment)
end

-- Promotes the jobs that can get tokens now, and moves the marker of the queue to the next token, if jobs are parked.
-- rare
local function promote_for_tokens(records, queue, now)
  local marked = redis.call('ZSCORE', queue.delayed, MARKER)
  if not marked or tonumber(marked) > now then
    return
  end
  redis.call('ZREM', queue.delayed, MARKER)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', records.tokens, '-inf', digits(now), 'LIMIT', 0, MAX_LINES)) do
    redis.call('ZREM', records.tokens, name)
    local free = read_rate(records, name, now * 1000).free
    if promote_all(records, name, math.max(math.min(free, PROMOTED), 1)) then
      redis.call('ZADD', records.tokens, digits(now + 1), name)
    end
  end
  local next_token = redis.call('ZRANGE', records.tokens, 0, 0, 'WITHSCORES')[2]
  if next_token and redis.call('EXISTS', queue.parked) == 1 then
    redis.call('ZADD', queue.delayed, next_token, MARKER)
  end
end

-- After a promoted job was leased: promotes further ones, if what it waited for is still free.
-- rare
local function promote_next(records, queue, state, name, us)
  local free, rate = PROMOTED, nil
  for need in string.gmatch(field(state, 'needs') or '', '[^,]+') do
    local left, found, other = read_need(records, need, us)
    if other == name then
      free, rate = left, found.full
    end
  end
  if free > 0 then
    promote(records, queue, name, math.min(free, PROMOTED))
  elseif rate and redis.call('EXISTS', queue.parked) == 1 then
    await_token(records, queue, name)
  end
end

-- Parks a job on a need. If it has a place, it keeps that.
-- rare
local function park(records, queue, id, state, name, us)
  parkings_left = parkings_left - 1
  local place = state.place == '0' and format_place(state.priority, next_moment(us)) or state.place
  redis.call('ZADD', queue.parked, '0', name .. ' ' .. place .. ' ' .. id)
  redis.call('ZADD', records.lines, '0', name .. ' ' .. name_of(queue))
  if known[name] and known[name].full then
    await_token(records, queue, name)
  end
  local before = state.blocked
  if before ~= name or state.place ~= place then
    state.blocked, state.place = name, place
    write_state(records, id, state)
  end
  if before ~= '-' and before ~= name then
    promote(records, queue, before, 1)
  end
end

-- Whether a job can be leased; if so, takes all that it needs, else parks it. `holds`: see take_needs.
-- rare
local function admit_waiting(records, queue, id, state, us, holds)
  local name, before = find_blocked(records, state, us), state.blocked
  if name then
    park(records, queue, id, state, name, us)
    return false
  end
  take_needs(records, id, state, us, holds)
  state.blocked = '-'
  if before ~= '-' then
    promote_next(records, queue, state, before, us)
  end
  return true
end

-- The same; for a job that waits for nothing it costs nothing.
local function admit(records, queue, id, state, us, holds)
  return state.blocked == '-' and not paused.tasks and not string.find(state.more, ' needs=', 1, true)
    or admit_waiting(records, queue, id, state, us, holds)
end
