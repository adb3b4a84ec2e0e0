-- Reads a job.
--
-- uses _records.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- ARGV  1 id
-- ARGV  2 age at which the result of a dead job expires: ms
-- ARGV  3 bytes of the payload and of the log to return at most; 0: all
-- Returns {id, payload, state, log}, with a limit {…, bytes of the payload, the server's clock (ms)}; {} if the job doesn't
-- exist, or its result has expired. Of a longer log the newest lines stay, of a longer line its beginning.
local records = records_at(KEYS)
local id, max_age, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- bytes of a list of workers, of which the latest stay
local MAX_WORKERS = 2000

local function newest_lines(log)
  if #log <= limit then
    return log
  end
  local line = string.reverse(string.match(string.reverse(log), '^[^\n]*'))
  return string.match(log, '\n(.*)$', -limit) or string.sub(line, 1, limit)
end

local record, state = read_record(records, id, tonumber(max_age))
if not record or limit == 0 then
  return record or {}
end
if #state.by > MAX_WORKERS then
  state.by = string.match(state.by, ',(.*)$', -MAX_WORKERS)
  record[3] = format_state(state)
end
record[5], record[6] = #record[2], milliseconds()
record[2], record[4] = string.sub(record[2], 1, limit), newest_lines(record[4])
return record
