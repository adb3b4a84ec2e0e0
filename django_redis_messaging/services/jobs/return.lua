-- Releases the jobs of claims whose replies were lost: their attempts have not started, and don't count.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _waiting.lua
-- uses common/_time.lua
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16… queues, see _queue.lua
-- ARGV  1-5 limits of the slot, see _leases.lua: max_dead, dead_ttl, max_lost, max_results, result_ttl
-- ARGV  6… tokens of the claims
-- Returns the number of released jobs
-- Promotes parked jobs: writes to TAG:queue:NAME:parked, :ready and :bell of their queues, see _waiting.lua.
-- Counts a job that ends in its batch, TAG:batch:ID, and enqueues the callbacks of the batch: see _batches.lua.
local records, queues = records_at(KEYS), queues_at(KEYS)
local limits = limits_at(ARGV, 1)
local tokens = {}
for at = 6, #ARGV do
  tokens[ARGV[at]] = true
end
local now = milliseconds()
-- Leases of a queue that are searched: the jobs of further ones come back when their leases end.
local MAX_LEASES = 1000

local released = 0
for _, queue in ipairs(queues) do
  local ids = redis.call('ZREVRANGE', queue.leased, 0, MAX_LEASES - 1)
  for number, text in ipairs(#ids > 0 and redis.call('HMGET', records.states, unpack(ids)) or {}) do
    local state = text and parse_state(text)
    if state and tokens[state.token] then
      released = released
        + settle(queue, records, now, limits, ids[number], state.fence, state.token, 'release', 0, '')
    end
  end
end
wake_for_promoted()
return released
