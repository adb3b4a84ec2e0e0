-- Settles the lease of one job.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses _time.lua
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- KEYS  9 ready
-- KEYS  10 delayed
-- KEYS  11 leased
-- KEYS  12 dead
-- KEYS  13 bell
-- ARGV  1 dead jobs that the queue keeps at most
-- ARGV  2 age at which a dead job is deleted: ms
-- ARGV  3 lease: id
-- ARGV  4 lease: fence
-- ARGV  5 lease: token
-- ARGV  6 outcome: done, retry, release or dead
-- ARGV  7 outcome: ms to keep the result, or to delay the next attempt
-- ARGV  8 outcome: line for the log of attempts
-- Returns 1, or 0 if the lease is stale
local records, queue = records_at(KEYS), queue_at(KEYS, 9)
local dead_limits = {count = tonumber(ARGV[1]), age = tonumber(ARGV[2])}
local lease = {id = ARGV[3], fence = ARGV[4], token = ARGV[5]}
local outcome = {kind = ARGV[6], ms = tonumber(ARGV[7]), line = ARGV[8]}
return settle(queue, records, lease, outcome, milliseconds(), dead_limits)
