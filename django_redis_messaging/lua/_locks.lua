-- Who waits for a lock. The line is in the order of tickets; a ticket ends when its waiter stops looking. To
-- wake somebody, the stream at the ticket's place of the ring gets a new entry: reading it takes nothing away,
-- so a wake-up can't go to somebody else.
local GRANT = 1000 -- ms within which who was given the lock must confirm it
local TICKET = 2000 -- ms after its last look that a ticket ends
local MOST_LOOKED_AT = 1000 -- tickets a script looks at

local function left(line, seen, token)
  redis.call('ZREM', line, token)
  redis.call('ZREM', seen, token)
end

-- Takes the first who still waits out of the line: its token and ticket.
local function next_of(line, seen, now)
  for _ = 1, MOST_LOOKED_AT do
    local first = redis.call('ZPOPMIN', line)
    if not first[1] then
      return
    end
    local looked = redis.call('ZSCORE', seen, first[1])
    redis.call('ZREM', seen, first[1])
    if looked and tonumber(looked) > now - TICKET then
      return first[1], tonumber(first[2])
    end
  end
end

-- Gives the lock to who waited, and wakes it. `ring` is where the ring begins in the keys. What comes before
-- has removed something, which is never refused, nor what a script writes after it: it works without memory.
local function handed_over(keys, ring, token, ticket, us)
  local lock, wake = keys[1], keys[ring + ticket % (#keys - ring + 1)]
  redis.call('SET', lock, token, 'PX', GRANT)
  redis.call('DEL', wake)
  redis.call('XADD', wake, string.format('%.0f-0', us), 't', token)
  redis.call('PEXPIRE', wake, 2 * TICKET)
end
