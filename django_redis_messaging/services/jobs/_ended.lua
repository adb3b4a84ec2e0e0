-- Clients wait for an entry of the stream TAG:ended:NAME: the script that ends a job or a batch adds it, which wakes
-- them all. Reading a stream removes nothing. The key has to be computed: a script may end any of its jobs. It is in the
-- slot of the KEYS, and its loss only delays waiting clients: they poll, too.
local ENDED_TTL = 10000 -- ms: longer than the time between a client's check and its read of the stream

-- A key of the slot, by its name.
local function key_named(records, name)
  return string.sub(records.jobs, 1, -#'jobs' - 1) .. name
end

-- The stream of a job, by its id, or of a batch.
local function ended_key(records, name)
  return key_named(records, 'ended:' .. name)
end

-- Wakes the clients that wait for this end.
-- rare
local function add_ended(records, name)
  local key = ended_key(records, name)
  redis.call('DEL', key)
  redis.call('XADD', key, '1-0', '', '')
  redis.call('PEXPIRE', key, ENDED_TTL)
end
