-- Clients that wait for the end of a job. The state's `awaited` says that there may be some: then the script that
-- ends the job adds an entry to the stream TAG:ended:ID, which wakes them all. Reading a stream removes nothing.
-- The key has to be computed: a script may end any of its jobs. It is in the slot of the KEYS, and its loss only
-- delays waiting clients: they poll, too.
--
local ENDED_TTL = 10000 -- ms: longer than the time between a client's check and its read of the stream

local function ended_key(records, id)
  return string.sub(records.jobs, 1, -#'jobs' - 1) .. 'ended:' .. id
end

-- Has the end of the job wake the caller. An entry of an earlier end, before a redrive, is deleted.
local function await_end(records, id, state)
  redis.call('DEL', ended_key(records, id)) -- Redis never refuses it, nor the writes after it
  state.awaited = '1'
  write_state(records, id, state)
end

-- Wakes the clients that wait for the end of the job. Called before the state is written.
local function wake_waiters(records, id, state)
  if state.awaited == '1' then
    local key = ended_key(records, id)
    redis.call('DEL', key)
    redis.call('XADD', key, '1-0', '', '')
    redis.call('PEXPIRE', key, ENDED_TTL)
    state.awaited = '0'
  end
end
