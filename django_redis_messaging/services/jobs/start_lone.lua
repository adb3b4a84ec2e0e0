-- Starts an attempt at a lone job, which jobs/claim.lua has leased without starting one.
--
-- uses _records.lua
-- uses common/_time.lua
--
-- KEYS  1-8 records, see _records.lua
-- ARGV  1 id
-- ARGV  2 fence
-- ARGV  3 token
-- ARGV  4 worker
-- Returns the state; false if the lease is stale. A repeat gets the state, too.
local records = records_at(KEYS)
local id, fence, token, worker = unpack(ARGV)
local state = leased_state(records, id, fence, token)
if not state then
  return false
end
if state.status == 'lone' then
  count_attempt(state, worker, milliseconds())
  -- First a removal of nothing: when memory is full, Redis refuses the next write unless a removal came before.
  redis.call('HDEL', records.states, '')
  write_state(records, id, state)
end
return format_state(state)
