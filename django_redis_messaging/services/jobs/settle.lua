-- Settles the lease of one job.
--
-- uses _leases.lua
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
--
-- KEYS  1-8 records, see _records.lua
-- KEYS  9-13 queue, see _queue.lua
-- ARGV  1 limits, as in _leases.lua
-- ARGV  2 lease: id
-- ARGV  3 lease: fence
-- ARGV  4 lease: token
-- ARGV  5 outcome: done, retry, release or dead
-- ARGV  6 outcome: ms to keep the result, or to delay the next attempt
-- ARGV  7 outcome: line for the log of attempts
-- Returns 1, or 0 if the lease is stale
-- Wakes the clients that wait for the end of a job: adds an entry to TAG:ended:ID, see _results.lua.
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local limits = parse_limits(ARGV[1])
local lease = {id = ARGV[2], fence = ARGV[3], token = ARGV[4]}
local outcome = {kind = ARGV[5], ms = tonumber(ARGV[6]), line = ARGV[7]}
return settle(queue, records, lease, outcome, milliseconds(), limits)
