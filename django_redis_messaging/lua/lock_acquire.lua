-- Takes a lock that is free, or that was handed over to the caller; else lets it wait in the line.
--
-- uses _microseconds.lua
-- uses _locks.lua
--
-- KEYS  1 lock
-- KEYS  2 fence
-- KEYS  3 line
-- KEYS  4 seen
-- KEYS  5… the ring of wake-up keys
-- ARGV  1 token
-- ARGV  2 lease: ms; 0 for none
-- ARGV  3 how many may wait, if the caller waits; 0: it does not, and leaves the line
-- ARGV  4 1 if the caller has waited
-- Returns the fence; or 0 where the caller neither has it nor waits; or how many wait, negative, where no more
-- may; or for one who waits: its place in the ring, the ms after which to look again, the server's µs
local lock, fence, line, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, lease, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local DAY = 86400000

local before, owner = string.match(redis.call('GET', fence) or '', '^(%d+) %S+ (.*)$')

-- A fence above all before, kept with the token.
local function granted(us)
  local now = math.max((tonumber(before) or 0) + 1, us)
  redis.call('SET', fence, string.format('%.0f - ', now) .. token, 'PX', math.max(DAY, 2 * lease))
  return now
end

local function leased()
  if lease > 0 then
    return redis.call('SET', lock, token, 'PX', lease, 'NX')
  end
  return redis.call('SET', lock, token, 'NX')
end

if ARGV[4] == '0' and redis.call('EXISTS', line) == 0 and leased() then
  return granted(microseconds())
end

local us = microseconds()
local now = math.floor(us / 1000)
local holder = redis.call('GET', lock)
if holder == token then
  if lease > 0 then
    redis.call('PEXPIRE', lock, string.format('%.0f', lease))
  else
    redis.call('PERSIST', lock)
  end
  -- A repeat, whose first reply was lost, has the fence that it has drawn; who was handed the lock draws one.
  return owner == token and tonumber(before) or granted(us)
end
if not holder then
  local first, ticket = next_of(line, seen, now)
  if not first or first == token then
    leased()
    return granted(us)
  end
  handed_over(KEYS, 5, first, ticket, us)
  holder = first
end

if most == 0 then
  left(line, seen, token)
  return 0
end
local ticket = tonumber(redis.call('ZSCORE', line, token) or nil)
if not ticket then
  local waiting = redis.call('ZCARD', line)
  if waiting >= most then
    return -waiting
  end
  ticket = tonumber(redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')[2] or 0) + 1
end
-- Redis refuses no PEXPIRE for want of memory, nor what a script writes after it: who waits goes on waiting.
local others = redis.call('PEXPIRE', line, 2 * TICKET)
redis.call('ZADD', line, ticket, token)
redis.call('ZADD', seen, string.format('%.0f', now), token)
if others == 0 then
  redis.call('PEXPIRE', line, 2 * TICKET)
end
redis.call('PEXPIRE', seen, 2 * TICKET)

-- Ours wake who comes next; of another client's lock the first who waits must find out.
local wait = TICKET / 4
if holder ~= owner and redis.call('ZRANK', line, token) == 0 then
  wait = wait / 5
end
local ends = redis.call('PTTL', lock)
if ends >= 0 then
  wait = math.min(wait, ends + 1)
end
return {ticket % (#KEYS - 4), wait, us}
