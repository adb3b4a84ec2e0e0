-- Reads what has become of a job, and what it waits for.
--
-- uses _serving.lua
-- uses common/_time.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
-- uses jobs/_waiting.lua
-- reads only
--
-- KEYS  1-15 records, see jobs/_records.lua
-- KEYS  16-22 queue in which it may be, see jobs/_queue.lua
-- KEYS  23 workers
-- ARGV  1 id; empty: the job that has the unique key
-- ARGV  2 unique key
-- ARGV  3 age at which the result of a dead job expires: ms
-- ARGV  4 age of a heartbeat at which its worker no longer counts: ms
-- ARGV  5 maximum number of holders to list
-- Returns {} if the job doesn't exist; else {server time (ms), id, state, beginning of the payload, last line of the log
-- about a failure, end of the lease (ms) or -1, jobs before it in this queue or -1, pause of the queue or '', pause of the
-- task or '', name of the first need that is not free or '', how many jobs hold that, how many may or -1, when its next
-- token is free (ms) or -1, workers that serve the queue, those of them that run no job, jobs that they run, jobs that end
-- there in a second (as text), whether the worker of the latest attempt is alive, jobs that hold the need …}
local records, queue, workers = records_at(KEYS), queue_at(KEYS, 1), KEYS[23]
local id, unique, max_age = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_silence, max_holders = tonumber(ARGV[4]), ARGV[5]
-- Bytes of a payload, in which the names of its task and queue are; and of the error of an attempt: its class.
local HEAD, ERROR = 4000, 600
local us = microseconds()
local now = math.floor(us / 1000)

-- The last line that says how an attempt failed.
local function last_failure(log)
  local last = ''
  for line in string.gmatch(log, '[^\n]+') do
    last = string.find(line, '^[EFL]') and line or last
  end
  return string.byte(last) == 69 and string.sub(last, 1, ERROR) or last
end

-- How many jobs are before a waiting one that is ready, or that becomes ready as soon as anybody claims; else -1.
local function count_before()
  local rank = redis.call('ZRANK', queue.ready, id)
  if rank then
    return rank
  end
  local due = tonumber(redis.call('ZSCORE', queue.delayed, id) or nil)
  if not due or due > now then
    return -1
  end
  local marker = tonumber(redis.call('ZSCORE', queue.delayed, MARKER) or nil)
  local is_after = marker and marker <= due
  return redis.call('ZCARD', queue.ready) + redis.call('ZRANK', queue.delayed, id) - (is_after and 1 or 0)
end

-- What a job needs first of what is not free: its name, how many hold it, how many may, and when the next token is free.
local function find_need(state)
  local name = find_blocked(records, state, us)
  if not name then
    return '', 0, -1, -1
  end
  local found, limit = known[name], -1
  if found.full then
    return name, 0, found.count, math.ceil((found.full - (found.count - 1) * found.interval) / 1000)
  end
  for need in string.gmatch(field(state, 'needs'), '[^,]+') do
    local own, count = string.match(need, '^(permit:[^/]*)/(%d+)')
    limit = own == name and (found.limit or tonumber(count)) or limit
  end
  return name, found.held, limit, -1
end

local function list_holders(name)
  local from, till = lex_range(name)
  local holders = {}
  for at, member in ipairs(redis.call('ZRANGEBYLEX', records.held, from, till, 'LIMIT', 0, max_holders)) do
    holders[at] = string.sub(member, #name + 2)
  end
  return holders
end

if id == '' then
  id = redis.call('HGET', records.uniques, unique)
end
local found, state = nil, nil
if id then
  found, state = read_record(records, id, max_age)
end
if not found then
  return {}
end
id = found[1]
local is_waiting, is_running = state.status == 'waiting', state.status == 'running'
local worker = string.match(state.by, '[^,]*$')
local task = field(state, 'task')
local serving = read_serving(workers, name_of(queue), worker, now, max_silence)
local name, held, limit, token = '', 0, -1, -1
if is_waiting then
  name, held, limit, token = find_need(state)
end
local pauses = redis.call('HMGET', records.paused, 'queue:' .. name_of(queue), 'task:' .. (task or ''))
return {
  now, id, found[3], string.sub(found[2], 1, HEAD), last_failure(found[4]),
  is_running and (redis.call('ZSCORE', queue.leased, id) or '-1') or '-1',
  is_waiting and count_before() or -1,
  pauses[1] or '', pauses[2] or '',
  name, held, limit, token,
  serving.serving, serving.idle, serving.running, string.format('%.3f', serving.rate), serving.alive,
  unpack(name ~= '' and list_holders(name) or {}),
}
