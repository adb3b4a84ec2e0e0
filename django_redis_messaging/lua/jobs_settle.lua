-- Settles one job: what its holder says of it.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _leases.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 outcomes
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 ready
-- KEYS  8 delayed
-- KEYS  9 leased
-- KEYS  10 dead
-- KEYS  11 bell
-- ARGV  1 most dead jobs that the queue keeps
-- ARGV  2 age at which a dead job is forgotten: ms
-- ARGV  3 id
-- ARGV  4 fence
-- ARGV  5 token
-- ARGV  6 verdict: done, again, dead or back
-- ARGV  7 value: ms to keep the result, or to wait
-- ARGV  8 line for the outcomes
-- Returns 1, or 0 when the lease is not the caller's any more
local now = math.floor(microseconds() / 1000)
return settled(
  queue_at(KEYS, 7), records_at(KEYS), ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], now, grave(ARGV[1], ARGV[2])
)
