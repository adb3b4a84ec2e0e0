-- Extends leases; never shortens one.
--
-- uses _records.lua
-- uses common/_time.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- KEYS  9… leased, of each job's queue
-- ARGV  1 length of the leases from now: ms
-- ARGV  2… for each of these keys: id, fence, token
-- Returns for each 1, or 0 if the lease is stale
local records = records_at(KEYS)
local length = tonumber(ARGV[1])
local ends = digits(milliseconds() + length)
local reply = {}
for at = 0, #KEYS - 9 do
  local leased = KEYS[at + 9]
  local id, fence, token = unpack(ARGV, at * 3 + 2, at * 3 + 4)
  local ours = leased_state(records, id, fence, token) ~= nil
  if ours then
    -- First a removal of nothing: when memory is full, Redis refuses the next write unless a removal came before.
    redis.call('ZREM', leased, '')
    redis.call('ZADD', leased, 'XX', 'GT', ends, id)
  end
  reply[#reply + 1] = ours and 1 or 0
end
return reply
