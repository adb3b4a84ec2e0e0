-- Reads what is stored about periodic tasks.
--
-- uses _periodic.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 periodic
-- ARGV  1… names
-- Returns the server's clock (ms), and for each task {handled, enqueued} in ms; 0 for never
local periodic = KEYS[1]
local reply = {milliseconds()}
for _, name in ipairs(ARGV) do
  local handled, _, enqueued = read_periodic(periodic, name)
  reply[#reply + 1] = {handled or 0, enqueued}
end
return reply
