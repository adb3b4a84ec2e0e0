-- Takes a permit if one is free and nobody waits for it before this caller; else the caller waits in the line.
--
-- uses _digits.lua
-- uses _microseconds.lua
-- uses _semaphores.lua
--
-- KEYS  1 holders
-- KEYS  2 limit
-- KEYS  3 line
-- KEYS  4 waiting
-- KEYS  5 gate
-- ARGV  1 token of the caller, for all its looks: who was granted one asks again only when its reply was lost
-- ARGV  2 lease: ms
-- ARGV  3 limit, where none is stored
-- ARGV  4 how long the limit is kept: ms
-- ARGV  5 for how long the caller counts as alive in the line: ms; 0 leaves it
-- Returns 1 when granted, 0 when not, or the caller's ticket in the line and the ms until it must look again,
-- if nothing wakes it before
local holders, line, waiting, gate, token = KEYS[1], KEYS[3], KEYS[4], KEYS[5], ARGV[1]
local now, lease = microseconds(), tonumber(ARGV[2])
local count = held(holders, now)
-- Redis refuses no GETEX for want of memory, nor what a script writes after it.
local stored = redis.call('GETEX', KEYS[2], 'PX', ARGV[4])
local free = tonumber(stored or ARGV[3]) - count
-- Of those whose lease is over, or who have released, some are remembered.
redis.call('ZREMRANGEBYRANK', holders, 0, -count - 1001)
local before, ticket, shown = redis.call('ZCARD', line), nil, nil
if before > 0 then
  swept(line, waiting, now)
  before, ticket = redis.call('ZRANK', line, token), redis.call('ZSCORE', line, token)
  before, shown = before or redis.call('ZCARD', line), opened_for(gate)
end

local function left()
  redis.call('ZREM', line, token)
  redis.call('ZREM', waiting, token)
  opened(line, gate, free, shown)
end

if not stored then
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
if before < free then
  redis.call('ZADD', holders, digits(now + lease * 1000), token)
  if redis.call('PTTL', holders) <= lease then
    redis.call('PEXPIRE', holders, 2 * lease + 1)
  end
  if shown then
    free = free - 1
    left()
  end
  return 1
end
if tonumber(redis.call('ZSCORE', holders, token) or 0) > now then
  return 1
end
if ARGV[5] == '0' then
  if shown then
    left()
  end
  return 0
end

shown = shown or opened_for(gate)
redis.call('ZADD', waiting, digits(now + ARGV[5] * 1000), token)
redis.call('PEXPIRE', waiting, ARGV[5] + 1)
if not ticket then
  local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
  ticket = digits(math.max(now, (tonumber(last) or 0) + 1))
  redis.call('ZADD', line, ticket, token)
end
redis.call('PEXPIRE', line, ARGV[5] + 1)
-- It was opened for this caller when there were more permits: it would not shut by itself.
if shown >= tonumber(ticket) then
  redis.call('DEL', gate)
  shown = 0
end
opened(line, gate, free, shown)

-- When enough leases will have ended; or the first of the line counts as dead, who may be before this caller.
local ends = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
local freed = redis.call('ZRANGEBYSCORE', holders, '(' .. digits(now), '+inf', 'WITHSCORES', 'LIMIT', before - free, 1)[2]
ends = math.min(tonumber(ends), tonumber(freed or ends))
return {ticket, math.max(math.ceil((ends - now) / 1000), 1)}
