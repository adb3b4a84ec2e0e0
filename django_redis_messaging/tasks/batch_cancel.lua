-- Cancels a batch: nothing is added to it any more, and it ends when the jobs that it has have ended.
--
-- uses common/_time.lua
-- uses jobs/_batches.lua
-- uses jobs/_records.lua
--
-- KEYS  1-15 records, see jobs/_records.lua
-- KEYS  16 batch, see jobs/_batches.lua
-- ARGV  1 id of the batch, encoded
-- Returns its fields, as text in the order of FIELDS in tasks/batches.py; {} if there is no such batch
-- May enqueue the callbacks of the batch: see jobs/_batches.lua.
local records, batch, id = records_at(KEYS), KEYS[16], ARGV[1]
local now = milliseconds()

local pending, ended = unpack(redis.call('HMGET', batch, 'pending', 'ended'))
if not pending then
  return {}
end
if not ended then
  redis.call('HDEL', batch, 'open') -- Redis never refuses it, nor the writes after it
  redis.call('PERSIST', batch)
  redis.call('HSET', batch, 'cancel', '1')
  if pending == '0' then
    end_batch(records, id, now)
  end
end
return redis.call('HMGET', batch, 'name', 'base', 'total', 'pending', 'failed', 'cancelled', 'cancel', 'created', 'ended')
