-- A chat's events: who joined and left, and what became of its title and its owners. They are no messages: they have no
-- ids of messages, and nobody acks them. The field `event` of info is the number of the latest one. The field `events`
-- has the newest 100, of at most 32 KiB: ten values each, each ended by a NUL, which none of them contains: number, ms,
-- id of the newest message at that time, kind, actor or '', title or '', number of users, the first three of them or ''.
local MAX_EVENTS, MAX_EVENTS_BYTES, EVENT_VALUES = 100, 32768, 10

-- Returns the events without the oldest one.
local function without_oldest(events)
  local stop = 0
  for _ = 1, EVENT_VALUES do
    stop = string.find(events, '\0', stop + 1, true)
  end
  return string.sub(events, stop + 1)
end

-- Adds an event to a chat whose info has not been lost. It is the script's last write.
local function add_event(info, now, last, kind, actor, users, title)
  if redis.call('HEXISTS', info, 'created') == 0 then
    return
  end
  local number = redis.call('HINCRBY', info, 'event', 1)
  local values = {
    number, now, last, kind, actor, title or '', #users, users[1] or '', users[2] or '', users[3] or '', '',
  }
  local events = (redis.call('HGET', info, 'events') or '') .. table.concat(values, '\0')
  while #events > MAX_EVENTS_BYTES or number - tonumber(string.match(events, '^%d+')) >= MAX_EVENTS do
    events = without_oldest(events)
  end
  redis.call('HSET', info, 'events', events)
end

-- Returns the number of the latest event, and the values of the events after `known` (all, for a number that this chat
-- has not reached) from the number `first` on. Takes the value of the field `event`.
local function events_since(info, latest, known, first)
  local found = {}
  latest = tonumber(latest or 0)
  if latest == known then
    return latest, found
  end
  local after, values = math.max(known and known < latest and known or 0, first - 1), {}
  for value in string.gmatch(redis.call('HGET', info, 'events') or '', '(%Z*)%z') do
    values[#values + 1] = value
    if #values == EVENT_VALUES then
      if tonumber(values[1]) > after then
        for _, each in ipairs(values) do
          found[#found + 1] = each
        end
      end
      values = {}
    end
  end
  return latest, found
end
