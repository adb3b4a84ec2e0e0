-- Lets leases end later; never earlier.
--
-- uses _states.lua
-- uses _digits.lua
-- uses _microseconds.lua
--
-- KEYS  1 states
-- KEYS  2… leased, of each job's queue
-- ARGV  1 lease: ms from now
-- ARGV  2… leases, one for each of these keys: id, fence, token
-- Returns for each 1, or 0 when the lease is not the caller's any more
local now = math.floor(microseconds() / 1000)
local reply = {}
for at = 2, #KEYS do
  local id, fence, token = unpack(ARGV, at * 3 - 4, at * 3 - 2)
  local text = redis.call('HGET', KEYS[1], id)
  local state = text and state_of(text)
  local ours = state and state.status == 'r' and state.fence == fence and state.token == token
  if ours then
    -- A removal of nothing comes first: without memory what follows would be refused.
    redis.call('ZREM', KEYS[at], '')
    redis.call('ZADD', KEYS[at], 'XX', 'GT', digits(now + tonumber(ARGV[1])), id)
  end
  reply[#reply + 1] = ours and 1 or 0
end
return reply
