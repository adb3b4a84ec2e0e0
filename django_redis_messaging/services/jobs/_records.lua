-- The records of jobs: the first KEYS of every job script, in the order of JobKeys.records in services/jobs/keys.py.
--
-- uses _tags.lua
-- uses common/_time.lua
local function records_at(keys)
  return {
    jobs = keys[1], states = keys[2], outcomes = keys[3], finished = keys[4], uniques = keys[5], aliases = keys[6],
    held = keys[7], lines = keys[8], rates = keys[9], tokens = keys[10], limits = keys[11], paused = keys[12],
    tags = keys[13],
  }
end

-- The two hashes for request ids, which follow the records: see common/_requests.lua. `offset`: ms, or nil.
local function requests_at(keys, offset)
  return {keys[14], keys[15], offset = offset}
end

-- A job's state, for example:
--   waiting attempts=0/5 pushed=1764170000000 due=1764170060000 task=shop.tasks.pack
--   running attempts=1/5 pushed=1764170000000 due=1764170060000 fence=1764170060001234 token=fea3e129e51a
--     first=1764170060001 by=web1-17-0a8554 task=shop.tasks.pack (in one line)
--   succeeded attempts=1/5 pushed=1764170000000 ended=1764170060350 fence=1764170060001234 first=1764170060001
--     by=web1-17-0a8554 task=shop.tasks.pack (in one line)
-- It begins with a status: waiting, running, succeeded, dead, cancelled, expired.
-- Named fields follow, in this order. Where a default is given, the field is left out if it has that value.
-- priority  default 0
-- attempts  how many have been started / how many may be started
-- pushed    ms
-- due       ms; when the job has ended, `ended` instead: ms. The scripts call both `moment`.
-- fence     of the latest lease; default 0
-- token     of the lease in force, random, chosen by its holder; default -
-- first     ms at which the first attempt was started; default 0: never
-- last      ms at which the latest attempt was started; default: `first`
-- by        the workers of the attempts, separated by commas; default -
-- lost      attempts whose lease expired, where these are counted apart from failures; default 0
-- awaited   1 if a client may wait for the end of the job; default 0
-- cancel    of a running job that shall be cancelled: ms to keep the cancellation as its result; default -
-- apart     1 if the job runs in a process of its own, since it may have ended the one it ran in; default 0
-- blocked   what a waiting job waits for, or did until it was promoted, see _waiting.lua; default -
-- place     its place among the jobs that were at the head of the queue before: of one that is parked, or was since it
--           became ready, and of one that was released; default 0
-- Then come the fields that never change, all of them optional. The scripts call them `more` and parse them only where
-- they need one: see `field`. Their values have no spaces and no newlines.
-- task      name of the task
-- needs     what the job must get to be leased, see _waiting.lua
-- group     with whose jobs it shares its turns, see _places.lua; percent-encoded
-- expires   ms from which on the job is not started: see expired_at. A push may give + and the ms until then
-- weight    how many jobs of its group have a turn in a round, from 1 to 100; default 1
-- tags      separated by commas, each percent-encoded, see _tags.lua; followed by
-- queue     name of its queue, percent-encoded
-- batch     id of the batch to which the job belongs, encoded: see _batches.lua
-- values    of a callback that takes the return values of a batch: its id, encoded
-- trace     where the call was made: the header traceparent of W3C Trace Context
-- tracestate  the other header, percent-encoded
-- replace   1 if a push of the job replaces a waiting one that has its unique key; see unique_holder
-- The last field is
-- unique    key that no other unfinished job may have, any text without newlines; default: empty
-- The state of a job whose result is kept is followed by its payload and its log, each after a newline: one field
-- takes less memory than three.

-- Adds the fields from the position `at` on to a state. Those that never change stay one text.
local function parse_fields(state, text, at)
  local name, value, after = string.match(text, '^ (%l+)=(%S*)()', at)
  while state[name] or name == 'last' do
    state[name], at = value, after
    name, value, after = string.match(text, '^ (%l+)=(%S*)()', at)
  end
  if name then
    local rest = string.match(text, '^[^\n]*', at)
    local unique = string.find(rest, ' unique=', 1, true)
    state.more = unique and string.sub(rest, 1, unique - 1) or rest
    state.unique = unique and string.sub(rest, unique + #' unique=') or ''
  end
end

-- The value of a field that never changes; nil if the job has none.
local function field(state, name)
  return string.match(state.more, ' ' .. name .. '=(%S*)')
end

-- The fields are texts: converting them to numbers and back takes longer than all else here. So does parsing one field
-- after another: of a job in its first attempt, three patterns match all.
local function parse_state(text)
  local status, priority, attempts, max_attempts, pushed, moment, at =
    string.match(text, '^(%a+)(.-) attempts=(%d+)/(%d+) pushed=(%d+) %a+=(%d+)()')
  local fence, token, first, by
  if at <= #text then
    local after
    fence, token, first, after = string.match(text, '^ fence=(%d+) token=(%S+) first=(%d+)()', at)
    at = after or at
    by, after = string.match(text, '^ by=(%S+)()', at)
    at = after or at
  end
  local state = {
    status = status, priority = priority == '' and '0' or string.match(priority, '%-?%d+'), attempts = attempts,
    max_attempts = max_attempts, pushed = pushed, moment = moment, fence = fence or '0', token = token or '-',
    first = first or '0', last = first, by = by or '-', lost = '0', awaited = '0', cancel = '-', apart = '0', blocked = '-',
    place = '0', unique = '', more = '',
  }
  if at <= #text then
    parse_fields(state, text, at)
  end
  state.last = state.last or state.first
  return state
end

-- The priority of a waiting job, without parsing the rest.
local function priority_of(text)
  return string.match(text, '^waiting priority=(%S+)') or '0'
end

-- When a job was pushed: ms, as text.
-- rare
local function pushed_at(text)
  return parse_state(text).pushed
end

-- The status alone, without parsing the rest.
local function status_of(text)
  return string.match(text, '^%a+')
end

-- Whether a job in this state has a result.
local function has_ended(state)
  return state.status ~= 'waiting' and state.status ~= 'running'
end

-- The ms at which a job has expired that no attempt has started; nil if it has not. A claim doesn't start it, but ends it.
-- For all who read it before, it has ended, too.
local function expired_at(state, now)
  if state.status == 'waiting' and state.first == '0' and string.find(state.more, ' expires=', 1, true) then
    local moment = tonumber(field(state, 'expires'))
    return moment <= now and moment or nil
  end
end

local function format_state(state)
  local fence, token, first, last, by = state.fence, state.token, state.first, state.last, state.by
  local status = state.status
  local will_run = status == 'running' or status == 'waiting'
  return status
    .. (state.priority ~= '0' and ' priority=' .. state.priority or '')
    .. ' attempts=' .. state.attempts .. '/' .. state.max_attempts .. ' pushed=' .. state.pushed
    .. (will_run and ' due=' or ' ended=') .. state.moment
    .. (fence ~= '0' and ' fence=' .. fence or '')
    .. (token ~= '-' and ' token=' .. token or '')
    .. (first ~= '0' and ' first=' .. first or '')
    .. (last ~= first and ' last=' .. last or '')
    .. (by ~= '-' and ' by=' .. by or '')
    .. (state.lost ~= '0' and ' lost=' .. state.lost or '')
    .. (state.awaited ~= '0' and ' awaited=' .. state.awaited or '')
    .. (state.cancel ~= '-' and ' cancel=' .. state.cancel or '')
    .. (state.apart ~= '0' and ' apart=' .. state.apart or '')
    .. (state.blocked ~= '-' and ' blocked=' .. state.blocked or '')
    .. (will_run and state.place ~= '0' and ' place=' .. state.place or '')
    .. state.more .. (state.unique ~= '' and ' unique=' .. state.unique or '')
end

-- The state of a job that is pushed, as text: what format_state returns for it.
local function new_state(pushed, moment, priority, max_attempts, unique, more)
  return 'waiting' .. (priority ~= '0' and ' priority=' .. priority or '') .. ' attempts=0/' .. max_attempts
    .. ' pushed=' .. pushed .. ' due=' .. moment .. (more ~= '' and ' ' .. more or '')
    .. (unique ~= '' and ' unique=' .. unique or '')
end

-- Starts an attempt of a worker, or -, at the ms `now`.
local function count_attempt(state, worker, now)
  state.status, state.attempts, state.last = 'running', digits(state.attempts + 1), digits(now)
  state.first = state.first == '0' and state.last or state.first
  if worker ~= '-' then
    state.by = state.by == '-' and worker or state.by .. ',' .. worker
  end
end

-- Takes back the attempt that runs, if any: it doesn't count. A job without attempts has not started.
local function uncount_attempt(state)
  if state.status ~= 'running' then
    return
  end
  state.attempts = state.attempts - 1
  if state.attempts == 0 then
    state.first, state.last = '0', '0'
  end
  state.by = string.match(state.by, '^(.*),[^,]*$') or '-'
end

-- The state of a job and its text; nil if the job doesn't exist.
local function read_state(records, id)
  local text = redis.call('HGET', records.states, id)
  if text then
    return parse_state(text), text
  end
end

local function write_state(records, id, state)
  redis.call('HSET', records.states, id, format_state(state))
end

-- The job that an id stands for: after a push with a unique key in use, the job that has the key. False if it stands
-- for itself.
local function aliased_job(records, id)
  return redis.call('HGET', records.aliases, 'a' .. id)
end

local function resolve_alias(records, id)
  return aliased_job(records, id) or id
end

-- Makes an id stand for another job: a HASH field for the id, and a numbered one with which the job's deletion finds
-- it. Over the limit, the id stands for nothing.
local function add_alias(records, id, job, max_aliases)
  local count = tonumber(redis.call('HGET', records.aliases, 'n' .. job) or 0)
  if count >= max_aliases or redis.call('HSETNX', records.aliases, 'a' .. id, job) == 0 then
    return
  end
  count = digits(count + 1)
  redis.call('HSET', records.aliases, 'n' .. job, count, count .. ' ' .. job, id)
end

-- Deletes the ids that stand for a job.
local function delete_aliases(records, job)
  local count = redis.call('HGET', records.aliases, 'n' .. job)
  if not count then
    return
  end
  local fields = {}
  for number = 1, count do
    fields[number] = digits(number) .. ' ' .. job
  end
  for _, id in ipairs(redis.call('HMGET', records.aliases, unpack(fields))) do
    fields[#fields + 1] = 'a' .. (id or '')
  end
  redis.call('HDEL', records.aliases, 'n' .. job, unpack(fields))
end

-- Whether a job that is pushed with these other fields replaces a waiting one that has its unique key.
local function replaces(more)
  return string.find(' ' .. more .. ' ', ' replace=1 ', 1, true) ~= nil
end

-- The job that has a unique key, so that one with these other fields is not added; or false. One that replaces a waiting
-- job is added if that runs already, and has the key from then on.
local function unique_holder(records, unique, more)
  local id = redis.call('HGET', records.uniques, unique)
  local text = id and redis.call('HGET', records.states, id)
  if text and string.find(text, ' expires=', 1, true) and expired_at(parse_state(text), milliseconds()) then
    return false
  end
  return text and (status_of(text) == 'waiting' or not replaces(more)) and id
end

-- Whether a newer job has taken over the unique key of this one.
local function is_superseded(records, id, state)
  return field(state, 'replace') and redis.call('HGET', records.uniques, state.unique) ~= id
end

-- The job that has the unique key with which a job is pushed, or false. If there is one, the id of the pushed job stands
-- for it from now on, unless that id was not given out: then `max_aliases` (see add_alias) is 0.
-- rare
local function holder_for(records, id, unique, more, max_aliases)
  if max_aliases == 0 then
    return unique_holder(records, unique, more)
  end
  local holder = aliased_job(records, id) or unique_holder(records, unique, more)
  if holder then
    add_alias(records, id, holder, max_aliases)
  end
  return holder
end

-- The fields of a job that never change, with the moment at which it expires, of a push that gives +ms.
-- rare
local function with_moment(more, now)
  local before, ms, after = string.match(more, '^(.*expires=)%+(%d+)(.*)$')
  return before .. digits(now + ms) .. after
end

-- The same for any push.
local function with_moments(more, now)
  return string.find(more, 'expires=+', 1, true) and with_moment(more, now) or more
end

-- Stores a job that is pushed at the ms `now`, and waits until `due`. `more`: the fields that never change, as text.
local function add_job(records, id, payload, now, due, priority, max_attempts, unique, more)
  more = with_moments(more, now)
  redis.call('HSET', records.jobs, id, payload)
  local pushed = digits(now)
  local moment = due > now and digits(due) or pushed
  redis.call('HSET', records.states, id, new_state(pushed, moment, priority, max_attempts, unique, more))
  add_tags(records, id, more)
  if unique ~= '' then
    redis.call('HSET', records.uniques, unique, id)
  end
end

-- Whether a job has attempts left after the current one. Expired leases count as failures unless `max_lost` is
-- given: the number of them at which a job is dead. A job with a single attempt is never started twice.
local function has_attempts_left(state, max_lost)
  local lost, max_attempts = tonumber(state.lost), tonumber(state.max_attempts)
  if lost > 0 and (lost >= max_lost or max_attempts == 1) then
    return false
  end
  return state.attempts - lost < max_attempts
end

-- Counts an attempt that ended with its process. A first one nearly always has another cause than the job: a deploy, or
-- another job of that process. From the second one on, or if the next one would be the last, the job runs apart.
local function count_lost(state, max_lost)
  if max_lost > 0 then
    state.lost = digits(state.lost + 1)
    if state.lost ~= '1' or max_lost <= 2 then
      state.apart = '1'
    end
  end
end

-- The state of a job that has this lease; nil if the lease is stale.
local function leased_state(records, id, fence, token)
  local state = read_state(records, id)
  if state and state.status == 'running' and state.fence == fence and state.token == token then
    return state
  end
end

-- Returns {id, payload, state, log} of a job, or of the one that the id stands for, and its parsed state; nil if it
-- doesn't exist, or its result has expired. `max_age`: ms after which the result of a dead job expires.
local function read_record(records, id, max_age)
  id = resolve_alias(records, id)
  local state, text = read_state(records, id)
  if not state then
    return
  end
  local now = milliseconds()
  local expires = redis.call('ZSCORE', records.finished, id)
  if (expires and tonumber(expires) <= now) or (state.status == 'dead' and state.moment + max_age <= now) then
    return
  end
  local expired = expired_at(state, now)
  if expired then
    state.status, state.moment = 'expired', digits(expired)
    text = format_state(state)
  end
  local head, payload, log = string.match(text, '^([^\n]*)\n([^\n]*)\n(.*)$')
  if head then
    return {id, payload, head, log}, state
  end
  return {id, redis.call('HGET', records.jobs, id) or '', text, redis.call('HGET', records.outcomes, id) or ''}, state
end
