-- Reads a job.
--
-- uses _records.lua
-- reads only
--
-- KEYS  1 jobs
-- KEYS  2 states
-- KEYS  3 log
-- KEYS  4 finished
-- KEYS  5 uniques
-- KEYS  6 aliases
-- KEYS  7 requests, current or previous window
-- KEYS  8 requests, the other window
-- ARGV  1 id
-- ARGV  2 age at which the result of a dead job expires: ms
-- Returns {id, payload, state, log}; {} if the job doesn't exist, or its result has expired
local records = records_at(KEYS)
local id, max_age = ARGV[1], tonumber(ARGV[2])
return read_record(records, id, max_age) or {}
