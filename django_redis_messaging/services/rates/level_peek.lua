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
local state, cost = KEYS[1], tonumber(ARGV[1])
local limits = read_levels(state, 2, milliseconds())
return decision(limits, ms_to_wait(limits, cost))
