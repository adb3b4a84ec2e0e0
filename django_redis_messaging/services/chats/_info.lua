-- The latest edits and events of a chat, which its key info lists.
--
-- Edits: the field edits is how many there were. The field edited is "dropped number:id number:id …": the 100 messages
-- edited or deleted last, each with the number of its latest edit, in the order of these numbers, after the highest number
-- that is no longer listed.
--
-- Events: who joined and left, and what became of the chat's title and its owners. They are no messages: they have no ids
-- of messages, and nobody acks them. The field event is the number of the latest one. The field events has the newest 100,
-- of at most 32 KiB: ten values each, each ended by a NUL, which none of them contains: number, ms, id of the newest message
-- at that time, kind, actor or '', title or '', number of users, the first three of them or ''.
local MAX_EVENTS, MAX_EVENTS_BYTES, EVENT_VALUES = 100, 32768, 10
local MAX_EDITS = 100

-- Returns the number of edits, whether some of those above `known` are no longer listed, and a list of the others,
-- {number, id}. Takes the values of the two fields. `known` can be nil: then there is nothing to list.
local function edits_since(count, line, known)
  count = tonumber(count or 0)
  if not known or known == count then
    return count, false, {}
  end
  local list, dropped = {}, line and tonumber(string.match(line, '^%d+')) or count
  for number, id in string.gmatch(line or '', '(%d+):(%d+)') do
    if tonumber(number) > known then
      list[#list + 1] = {number = tonumber(number), id = tonumber(id)}
    end
  end
  return count, known < dropped or known > count, list
end

-- Records an edit of the message `id`.
local function record_edit(info, id)
  local count, line = unpack(redis.call('HMGET', info, 'edits', 'edited'))
  count = tonumber(count or 0)
  line = string.gsub((line or tostring(count)) .. ' ', ' %d+:' .. id .. ' ', ' ', 1)
  local _, listed = string.gsub(line, ':', '')
  if listed >= MAX_EDITS then
    line = string.gsub(line, '^%d+ (%d+):%d+', '%1')
  end
  redis.call('HSET', info, 'edits', count + 1, 'edited', line .. count + 1 .. ':' .. id)
end

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
