-- Reads a job.
--
-- uses _records.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- ARGV  1 id
-- ARGV  2 age at which the result of a dead job expires: ms
-- Returns {id, payload, state, log}; {} if the job doesn't exist, or its result has expired
local records = records_at(KEYS)
local id, max_age = ARGV[1], tonumber(ARGV[2])
return read_record(records, id, max_age) or {}
