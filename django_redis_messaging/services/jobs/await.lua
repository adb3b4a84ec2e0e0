-- Reads a job that has ended; if it has not, marks it, so that its end wakes the caller.
--
-- uses _records.lua
-- uses _results.lua
--
-- KEYS  1-15 records, see _records.lua
-- ARGV  1 id
-- ARGV  2 age at which the result of a dead job expires: ms
-- Returns {id, payload, state, log} of a job that has ended; {id} of one that has not; {} if the job doesn't exist,
-- or its result has expired. The id is that of the job in force.
-- Deletes the stream TAG:ended:ID, see _ended.lua.
local records = records_at(KEYS)
local found, state = read_record(records, ARGV[1], tonumber(ARGV[2]))
if not found or has_ended(state) then
  return found or {}
end
if state.awaited ~= '1' then
  await_end(records, found[1], state)
end
return {found[1]}
