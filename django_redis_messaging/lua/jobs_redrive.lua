-- Puts dead jobs back into the line, with all their attempts before them.
--
-- uses _states.lua
-- uses _queue.lua
--
-- KEYS  1 states
-- KEYS  2 uniques
-- KEYS  3 ready
-- KEYS  4 delayed
-- KEYS  5 leased
-- KEYS  6 dead
-- KEYS  7 bell
-- ARGV  1 how many, where no ids are given: the oldest
-- ARGV  2… ids
-- Returns how many were put back. One whose unique key another job has meanwhile stays dead.
local queue = queue_at(KEYS, 3)
local now = math.floor(microseconds() / 1000)
local ids = {unpack(ARGV, 2)}
if #ids == 0 then
  ids = redis.call('ZRANGE', queue.dead, 0, ARGV[1] - 1)
end
local count = 0
for _, id in ipairs(ids) do
  local text = redis.call('HGET', KEYS[1], id)
  local state = text and state_of(text)
  if state and state.status == 'd' then
    local other = state.unique ~= '' and redis.call('HGET', KEYS[2], state.unique)
    if not other then
      if state.unique ~= '' then
        redis.call('HSET', KEYS[2], state.unique, id)
      end
      state.status, state.attempts, state.moment = 'w', 0, digits(now)
      redis.call('HSET', KEYS[1], id, text_of(state))
      queued(queue, id, state.priority, now, now)
      redis.call('ZREM', queue.dead, id)
      count = count + 1
    end
  end
end
return count
