-- Extends leases; never shortens one.
--
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16… queues, see _queue.lua
-- ARGV  1 length of the leases from now: ms
-- ARGV  2… leases, each: queue (1, 2 …), id, fence, token
-- Returns for each 1, 2 if the job shall be cancelled, or 0 if the lease is stale
local records, queues = records_at(KEYS), queues_at(KEYS)
local length = tonumber(ARGV[1])
local FIRST, FIELDS = 2, 4
local ends = digits(milliseconds() + length)
local reply = {}
for at = FIRST, #ARGV, FIELDS do
  local number, id, fence, token = unpack(ARGV, at, at + FIELDS - 1)
  local queue = queues[tonumber(number)]
  local state = leased_state(records, id, fence, token)
  if state then
    -- First a removal of nothing: when memory is full, Redis refuses the next write unless a removal came before.
    redis.call('ZREM', queue.leased, '')
    redis.call('ZADD', queue.leased, 'XX', 'GT', ends, id)
  end
  reply[#reply + 1] = state and (state.cancel == '-' and 1 or 2) or 0
end
return reply
