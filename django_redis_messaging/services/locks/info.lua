-- Reads the state of a lock.
--
-- uses _locks.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1 lock
-- KEYS  2 fence
-- KEYS  3 queue
-- KEYS  4 seen
-- ARGV  1 maximum number of waiting clients to list
-- Returns {server time (ms), holder or nil, ms until its lease ends, fence of the latest acquire, whether that was the
-- holder's, number of waiting clients, then the tokens of the first of them}
local lock, fence, queue, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit = tonumber(ARGV[1])
local now = milliseconds()
local holder = redis.call('GET', lock)
local latest, owner = string.match(redis.call('GET', fence) or '', '^(%d+) %S+ (.*)$')
local alive = '(' .. digits(now - TICKET)
local info = {now, holder, redis.call('PTTL', lock), latest or '0', owner == holder and 1 or 0}
info[#info + 1] = redis.call('ZCOUNT', seen, alive, '+inf')
for _, token in ipairs(redis.call('ZRANGE', queue, 0, limit - 1)) do
  if has_polled(seen, token, now) then
    info[#info + 1] = token
  end
end
return info
