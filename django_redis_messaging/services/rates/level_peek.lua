-- Reads whether a key could be used now.
--
-- uses _levels.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 level
-- ARGV  1 cost
-- ARGV  2… limit, period (ms) and capacity of each limit
-- Returns a decision (_levels.lua)
local limits = read_levels(KEYS[1], 2, milliseconds())
return decision(limits, ms_to_wait(limits, tonumber(ARGV[1])))
