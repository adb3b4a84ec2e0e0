-- Requeues dead jobs with all their attempts: a page of all of them, or those with the given ids.
--
-- uses _batches.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _tags.lua
-- uses common/_requests.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 age at which a dead job is deleted: ms
-- ARGV  2 page size, if no ids are given: the oldest jobs first
-- ARGV  3 position of the page, as returned with the page before; empty for the first
-- ARGV  4 request id
-- ARGV  5 request window: ms
-- ARGV  6 delay in ms, or @ and a moment in ms
-- ARGV  7… ids
-- Returns the number of requeued jobs, and the position of the next page, empty after the last. A job stays dead
-- if another job has its unique key now.
-- Counts a redriven job in its batch, TAG:batch:ID: see _batches.lua.
local records, queue, requests = records_at(KEYS), queue_at(KEYS, 1), requests_at(KEYS)
local max_age, page_size, position = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local request, window = ARGV[4], tonumber(ARGV[5])
local delay, ids = ARGV[6], {unpack(ARGV, 7)}
local us = microseconds()
local now = math.floor(us / 1000)
local due = math.max(due_after(delay, us), now)
local since = now - max_age
local recorded = find_answer(request, requests, window, now)
if recorded then
  local count, next_position = string.match(recorded, '^(%d+) (.*)$')
  return {tonumber(count), next_position}
end

local function redrive(id)
  local state = read_state(records, id)
  if not state or tonumber(state.moment) <= since or not redis.call('ZSCORE', queue.dead, id) then
    return false
  end
  if state.unique ~= '' and redis.call('HSETNX', records.uniques, state.unique, id) == 0 then
    return false
  end
  state.status, state.moment, state.attempts, state.lost = 'waiting', digits(due), '0', '0'
  state.first, state.last, state.by = '0', '0', '-'
  state.more = string.gsub(state.more, ' expires=%d+', '') -- it was started in time
  count_redrive(records, state)
  write_state(records, id, state)
  add_tags(records, id, state.more)
  enqueue(queue, records, id, state.priority, due, now, state.more)
  redis.call('ZREM', queue.dead, id)
  return true
end

-- Records the answer for repeats of the request.
local function answer(count, next_position)
  if count > 0 then
    record_answer(request, count .. ' ' .. next_position, requests, window, now)
  end
  return {count, next_position}
end

local count = 0
if #ids > 0 then
  for _, id in ipairs(ids) do
    count = count + (redrive(resolve_alias(records, id)) and 1 or 0)
  end
  return answer(count, '')
end
-- A position is "till moment id": the start of the first page, and the last job that stayed dead. The next page
-- begins behind that job. Jobs that died after `till` are left out: a job that dies again is not redriven twice.
local till, moment, last = string.match(position, '^(%d+) (%-?%d+) (.*)$')
till, moment, last = tonumber(till or now), moment or digits(since), last or ''
local rank = last ~= '' and redis.call('ZSCORE', queue.dead, last) == moment and redis.call('ZRANK', queue.dead, last)
-- If that one has gone meanwhile, the page begins with the first job that died in the same ms.
local before = last ~= '' and '(' .. moment or moment
local from = rank and rank + 1 or redis.call('ZCOUNT', queue.dead, '-inf', before)
local page = redis.call('ZRANGE', queue.dead, from, from + page_size - 1, 'WITHSCORES')
for at = 1, #page, 2 do
  if tonumber(page[at + 1]) > till then
    return answer(count, '')
  end
  if redrive(page[at]) then
    count = count + 1
  else
    last, moment = page[at], page[at + 1]
  end
end
if #page < 2 * page_size then
  return answer(count, '')
end
return answer(count, digits(till) .. ' ' .. moment .. ' ' .. last)
