-- Counts the jobs of a queue as if everything due by time had been done.
--
-- uses _places.lua
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 age at which a dead job is removed: ms
-- ARGV  2 expired leases at which a job is dead, 0 if these count as failures
-- Returns ready, delayed, leased, dead, how long the oldest ready job has been due (ms), or -1, and parked
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local max_age, max_lost = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = milliseconds()
local marker = tonumber(redis.call('ZSCORE', queue.delayed, MARKER) or nil)
local due = redis.call('ZCOUNT', queue.delayed, '-inf', now) - (marker and marker <= now and 1 or 0)
local expired = redis.call('ZCOUNT', queue.leased, '-inf', now)
local first = redis.call('ZRANGE', queue.delayed, 0, 1, 'WITHSCORES')
local oldest = tonumber(first[1] == MARKER and first[4] or first[2])

local function note_due(moment)
  oldest = math.min(oldest or moment, moment)
end

-- A lease that expired in a last attempt leaves a dead job. Only the first 500 are read.
local dying = 0
local leases = redis.call('ZRANGEBYSCORE', queue.leased, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 500)
for at = 1, #leases, 2 do
  local state = read_state(records, leases[at])
  if state then
    count_lost(state, max_lost)
  end
  if state and not has_attempts_left(state, max_lost) then
    dying = dying + 1
  else
    note_due(tonumber(leases[at + 1]))
  end
end
-- The first job of each priority is the oldest of it, unless groups take turns, or it was promoted.
local from = '-inf'
while true do
  local head = redis.call('ZRANGEBYSCORE', queue.ready, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not head[1] then
    break
  end
  local state = read_state(records, head[1])
  if state then
    note_due(tonumber(state.moment))
  end
  from = next_band(head[2])
end
return {
  redis.call('ZCARD', queue.ready) + due + expired - dying,
  redis.call('ZCARD', queue.delayed) - (marker and 1 or 0) - due,
  redis.call('ZCARD', queue.leased) - expired,
  redis.call('ZCOUNT', queue.dead, '(' .. digits(now - max_age), '+inf') + dying,
  oldest and oldest <= now and now - oldest or -1,
  redis.call('ZCARD', queue.parked),
}
