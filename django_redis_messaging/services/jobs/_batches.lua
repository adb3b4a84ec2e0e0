-- Batches: each end of a job of a batch is counted, and the last one enqueues the callbacks, in the script of that end.
--
-- A batch is the HASH TAG:batch:ID. Its key has to be computed: the script finds ID in the state of a job, as the field
-- `batch`. It is in the slot of the KEYS; so are the queues of the callbacks, whose keys are computed, too.
-- name        given by its creator
-- base        of the ids of its jobs: the position of the job follows, in six hexadecimal digits
-- total       jobs that have been added
-- pending     those that have not ended
-- failed      those that are dead, or were until they expired
-- cancelled   those that were cancelled, or purged, or not enqueued since another job had their unique key
-- open        1 until the creator has added its last job; a batch that is open doesn't end
-- cancel      1 once the batch was cancelled: nothing is added any more
-- created     ms
-- ended       ms; not there before
-- result_ttl  ms for which the batch is kept after its end
-- dead_ttl    ms for which it is kept if jobs of it are dead: these may be redriven
-- added:SOURCE  jobs added by its creator (SOURCE is empty), by a job of the batch (its id), or by another client
-- page:SOURCE   position of the first job of the latest page of this source
-- A callback is on_done, on_succeeded, on_failed or on_first_failure. It has the fields on_done:id, and so on, with what
-- add_job needs, and `queue`, encoded. They are deleted when it is enqueued, so it is enqueued once.
-- The number of jobs that succeeded is the rest of the total: so that a success costs one command.
--
-- uses _ended.lua
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua

-- The key of a batch. `id`: encoded.
local function batch_key(records, id)
  return key_named(records, 'batch:' .. id)
end

-- Enqueues a callback of a batch, if it has this one still, unless another job has its unique key.
-- rare
local function enqueue_callback(records, batch, callback, now)
  local fields = {}
  for at, name in ipairs({'id', 'queue', 'payload', 'delay', 'priority', 'max_attempts', 'unique', 'more'}) do
    fields[at] = callback .. ':' .. name
  end
  local id, queue, payload, delay, priority, max_attempts, unique, more = unpack(redis.call('HMGET', batch, unpack(fields)))
  if not id then
    return
  end
  redis.call('HDEL', batch, unpack(fields))
  if unique ~= '' and unique_holder(records, unique, more) then
    return
  end
  local due = math.max(due_after(delay, now * 1000 + 999), now)
  add_job(records, id, payload, now, due, priority, max_attempts, unique, more)
  enqueue(queue_named(key_named(records, 'queue:' .. queue)), records, id, priority, due, now, more)
end

-- Ends a batch none of whose jobs are pending, unless its creator goes on adding jobs.
-- rare
local function end_batch(records, id, now)
  local batch = batch_key(records, id)
  local names = {'open', 'failed', 'cancelled', 'result_ttl', 'dead_ttl'}
  local open, failed, cancelled, ttl, dead_ttl = unpack(redis.call('HMGET', batch, unpack(names)))
  if open then
    return
  end
  redis.call('HSET', batch, 'ended', digits(now))
  enqueue_callback(records, batch, 'on_done', now)
  if failed ~= '0' then
    enqueue_callback(records, batch, 'on_failed', now)
    ttl = dead_ttl
  elseif cancelled == '0' then
    enqueue_callback(records, batch, 'on_succeeded', now)
  end
  redis.call('PEXPIRE', batch, ttl)
  add_ended(records, 'batch:' .. id)
end

-- rare
local function count_in_batch(records, id, status, now)
  local batch = batch_key(records, id)
  local pending = redis.call('HINCRBY', batch, 'pending', '-1')
  if pending < 0 then
    redis.call('DEL', batch) -- it had expired: only this field was there
    return
  end
  if status ~= 'succeeded' then
    redis.call('HINCRBY', batch, status == 'dead' and 'failed' or 'cancelled', '1')
  end
  if status == 'dead' then
    enqueue_callback(records, batch, 'on_first_failure', now)
  end
  if pending == 0 then
    end_batch(records, id, now)
  end
end

-- Counts the end of a job in its batch, if it has one. `status`: succeeded, dead or cancelled. Called before the state
-- is written: a dead job was counted when it died.
local function count_end(records, state, status, now)
  if string.find(state.more, ' batch=', 1, true) and state.status ~= 'dead' then
    count_in_batch(records, field(state, 'batch'), status, now)
  end
end

-- Counts a dead job that is redriven as one that has not ended. So its batch has not either; its callbacks are not
-- enqueued again.
local function count_redrive(records, state)
  local id = field(state, 'batch')
  local batch = id and batch_key(records, id)
  if not id or redis.call('HEXISTS', batch, 'pending') == 0 then
    return
  end
  redis.call('HINCRBY', batch, 'failed', '-1')
  redis.call('HINCRBY', batch, 'pending', '1')
  if redis.call('HDEL', batch, 'ended') == 1 then
    redis.call('PERSIST', batch)
    redis.call('DEL', ended_key(records, 'batch:' .. id))
  end
end
