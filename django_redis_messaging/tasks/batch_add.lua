-- Adds a page of jobs to a batch, and enqueues them; its creator's first page creates the batch. The pages of one source
-- follow one another, so a page that comes again is recognized by its offset, as long as the batch is stored.
--
-- uses common/_time.lua
-- uses jobs/_batches.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
--
-- KEYS  1-15 records, see jobs/_records.lua
-- KEYS  16… queues, see jobs/_queue.lua; behind them, the batch, see jobs/_batches.lua
-- ARGV  1 id of the batch, encoded
-- ARGV  2 source: empty for the creator
-- ARGV  3 offset of the page: number of jobs that this source has added before
-- ARGV  4 whether it is the creator's last page: 1 or 0
-- ARGV  5 limit of waiting jobs in a queue
-- ARGV  6 limit of jobs in the batch
-- ARGV  7 ms for which a batch that is open is kept after this page
-- ARGV  8 number of fields to create the batch with, of the creator; else 0
-- ARGV  9… these: names and values; for each queue, the number of jobs that this source is going to add to it, from this
--         page on; then the jobs: queue (1, 2 …), payload, delay (ms, or @ and a moment in ms), priority, max attempts,
--         unique key, and the other fields that never change, as text
-- Returns the fields of the batch, as text in the order of FIELDS in tasks/batches.py, and three more: how many jobs the
-- source has added, the position of the first one of its latest page, and now (ms). {} if there is no such batch. If a
-- limit is exceeded, with nothing done: the number of jobs that would wait in a queue; or that of the jobs in the batch,
-- negative.
-- May enqueue the callbacks of the batch: see jobs/_batches.lua.
local records, queues, batch = records_at(KEYS), queues_at(KEYS), KEYS[#KEYS]
local id, source, offset, is_last = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local max_waiting, max_total, open_ttl = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local FIRST, FIELDS = 9, 7
local COUNTS = FIRST + ARGV[8]
local JOBS = COUNTS + #queues
local count = (#ARGV - JOBS + 1) / FIELDS
local us = microseconds()
local now = math.floor(us / 1000)
local added_field, page_field = 'added:' .. source, 'page:' .. source

local function read(...)
  return unpack(redis.call('HMGET', batch, ...))
end

local function answer()
  local fields = redis.call('HMGET', batch, 'name', 'base', 'total', 'pending', 'failed', 'cancelled', 'cancel', 'created',
    'ended', added_field, page_field)
  fields[#fields + 1] = digits(now)
  return fields
end

local total, added, cancel, ended = read('total', added_field, 'cancel', 'ended')
if not total and COUNTS == FIRST then
  return {}
end
local is_closed = total and is_last and not read('open')
if cancel or ended or tonumber(added or 0) ~= offset or (count == 0 and is_closed) then
  return answer()
end
if (total or 0) + count > max_total then
  return -(total + count)
end
for number, queue in ipairs(queues) do
  local waiting = count_waiting(queue) + redis.call('ZCARD', queue.parked) + ARGV[COUNTS + number - 1]
  if waiting > max_waiting then
    return waiting
  end
end

if not total then
  redis.call('HSET', batch, 'total', '0', 'pending', '0', 'failed', '0', 'cancelled', '0', 'open', '1', 'created', digits(now),
    unpack(ARGV, FIRST, COUNTS - 1))
  total = 0
end
local base, ready, priorities, texts = read('base'), {}, {}, {}

-- Stores one job; those that are due are collected.
local function add(number, position, payload, delay, priority, max_attempts, unique, more)
  local job, due = base .. string.format('%06x', position), math.max(due_after(delay, us), now)
  add_job(records, job, payload, now, due, priority, max_attempts, unique, more .. ' batch=' .. id)
  if due > now then
    delay_until(queues[number], job, due)
    return
  end
  ready[number], priorities[number] = ready[number] or {}, priorities[number] or {}
  texts[number] = texts[number] or {}
  table.insert(ready[number], job)
  table.insert(priorities[number], priority)
  table.insert(texts[number], more)
end

local skipped = 0
for number = 1, count do
  local at = JOBS + (number - 1) * FIELDS
  local unique = ARGV[at + 5]
  if unique ~= '' and unique_holder(records, unique, ARGV[at + 6]) then
    skipped = skipped + 1
  else
    add(tonumber(ARGV[at]), total + number - 1, unpack(ARGV, at + 1, at + FIELDS - 1))
  end
end
for number, ids in pairs(ready) do
  promote_due(queues[number], records, now) -- these became due before
  append_ready(queues[number], ids, priorities[number], texts[number])
  ring_bell(queues[number])
end
redis.call('HSET', batch, added_field, digits(offset + count), page_field, digits(total))
redis.call('HINCRBY', batch, 'total', digits(count))
redis.call('HINCRBY', batch, 'cancelled', digits(skipped))
local pending = redis.call('HINCRBY', batch, 'pending', digits(count - skipped))
if is_last then
  redis.call('HDEL', batch, 'open')
  redis.call('PERSIST', batch)
elseif read('open') then
  redis.call('PEXPIRE', batch, open_ttl)
end
if pending == 0 then
  end_batch(records, id, now)
end
return answer()
