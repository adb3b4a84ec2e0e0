-- Acquires a lock that is free or was handed over to the caller; otherwise queues the caller, if it waits.
--
-- uses _locks.lua
--
-- KEYS  1 key
-- KEYS  2 fence
-- KEYS  3 line
-- KEYS  4 seen
-- KEYS  5 releases
-- KEYS  6… ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 lease: ms; 0 for none
-- ARGV  3 maximum length of the queue; 0: the caller doesn't wait, and leaves the queue
-- ARGV  4 1 if the caller has waited already, or may acquire it although the server is out of memory; else 0
-- ARGV  5 another token of the caller, with which it may hold the lock already; or empty
-- ARGV  6… up to 499 tokens of other waiting clients to keep in the queue
-- Returns the fence; 0 if the caller neither has the lock nor waits; nil if it holds the lock with its other token; the
-- length of the queue, negated, if it is full; or, if the caller waits, {place in the ring, ms until the next poll,
-- server time in µs, those of the other clients that are not in the queue}
local caller = {
  token = ARGV[1], lease = ARGV[2], max_waiting = tonumber(ARGV[3]), has_waited = ARGV[4] ~= '0', other_token = ARGV[5],
  others = {unpack(ARGV, 6)},
}

return acquire(KEYS, caller)
