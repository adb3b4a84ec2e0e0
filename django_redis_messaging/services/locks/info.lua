-- Reads the state of a lock.
--
-- uses _locks.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-5 lock (_locks.lua)
-- ARGV  1 maximum number of waiting clients to list
-- Returns {server time (ms), holder or nil, ms until its lease ends, fence of the latest acquire, whether that was the
-- holder's, number of waiting clients, then the tokens of the first of them}
local lock = lock_at(KEYS)
local limit = tonumber(ARGV[1])
local now = milliseconds()
local holder = redis.call('GET', lock.key)
local latest, owner = string.match(redis.call('GET', lock.fence) or '', '^(%d+) %S+ (.*)$')
local alive = '(' .. digits(now - TICKET)
local info = {now, holder, redis.call('PTTL', lock.key), latest or '0', owner == holder and 1 or 0}
info[#info + 1] = redis.call('ZCOUNT', lock.seen, alive, '+inf')
for _, token in ipairs(redis.call('ZRANGE', lock.line, 0, limit - 1)) do
  if has_polled(lock.seen, token, now) then
    info[#info + 1] = token
  end
end
return info
