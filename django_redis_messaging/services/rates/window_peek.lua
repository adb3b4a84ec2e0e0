-- Reads whether a key could be used now.
--
-- uses _windows.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 uses
-- ARGV  1 cost
-- ARGV  2… limit and period (ms) of each limit, the shortest period first
-- Returns {1 if it could be used, uses left, ms to wait, ms until no use counts any more, number of the tightest limit}
local uses, now = KEYS[1], microseconds()
local wait, left, tightest = decide(2, now, tonumber(ARGV[1]), uses, redis.call('LLEN', uses) / 2)
return {wait == 0 and 1 or 0, left, wait, ms_to_none(now, uses, tonumber(ARGV[#ARGV])), tightest}
