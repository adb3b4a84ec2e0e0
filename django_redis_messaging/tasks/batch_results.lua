-- Reads the results of some jobs of a batch, in their order: as many as are wanted, or as MAX_BYTES allow, at least one.
--
-- uses jobs/_records.lua
-- reads only
--
-- KEYS  1-15 records, see jobs/_records.lua
-- ARGV  1 base of the ids, see jobs/_batches.lua
-- ARGV  2 position of the first job
-- ARGV  3 number of jobs
-- ARGV  4 age at which the result of a dead job expires: ms
-- Returns for each {id, payload, state, log}; {} if it doesn't exist, or its result has expired
local records = records_at(KEYS)
local base, first, count, max_age = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local MAX_BYTES = 2 ^ 20

local found, bytes = {}, 0
while #found < count and bytes < MAX_BYTES do
  local record = read_record(records, base .. string.format('%06x', first + #found), max_age) or {}
  bytes = bytes + #(record[2] or '') + #(record[4] or '')
  found[#found + 1] = record
end
return found
