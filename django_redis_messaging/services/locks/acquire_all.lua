-- Acquires locks one after another, in this order, until one is busy. If the caller waits, it is queued there, keeps those
-- before with a new lease, and loses those after: it never waits for a lock while it holds a later one. Otherwise it
-- keeps none.
--
-- uses _locks.lua
--
-- KEYS  1… the keys of each lock, those of acquire.lua
-- ARGV  1 token
-- ARGV  2 lease: ms
-- ARGV  3 maximum length of a queue; 0: the caller doesn't wait
-- ARGV  4 1 if the caller has waited already, else 0
-- ARGV  5… another token of the caller, with which it may hold the lock already; or empty; of each lock
-- Returns a list with an item for each lock: the fence, or for the first busy one what acquire.lua returns; 0 for the locks
-- that the caller neither holds nor waits for
local caller = {
  token = ARGV[1], lease = ARGV[2], max_waiting = tonumber(ARGV[3]), has_waited = ARGV[4] ~= '0', others = {},
}
local FIRST = 5 -- argument of the first lock
local count = #ARGV - FIRST + 1

local function keys_of(at)
  local length = #KEYS / count
  return {unpack(KEYS, (at - 1) * length + 1, at * length)}
end

-- Releases a lock if the caller holds it, or lets the caller leave the queue.
-- rare
local function give_up(keys)
  if redis.call('GET', keys[1]) == caller.token then
    free(keys)
  else
    leave_queue(keys[3], keys[4], caller.token)
  end
end

local items, busy = {}, nil
for at = 1, count do
  local keys = keys_of(at)
  if busy then
    items[at] = 0
    if caller.has_waited then -- it may have held this one while it waited
      give_up(keys)
    end
  else
    caller.other_token = ARGV[FIRST + at - 1]
    local item = acquire(keys, caller)
    if type(item) == 'table' and item.err then
      return item
    end
    items[at] = item or false
    busy = not (type(item) == 'number' and item > 0) and at or nil
  end
end
if busy and caller.max_waiting == 0 then
  for at = 1, busy - 1 do
    give_up(keys_of(at))
    items[at] = 0
  end
end
return items
