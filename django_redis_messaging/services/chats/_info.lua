-- The latest edits and events of a chat.
--
-- Edits: the field edits of info is how many there were. The ZSET edits has the 100 messages edited or deleted last: id →
-- number of its latest edit; and "dropped" → the highest number that is no longer listed, which is the lowest score.
--
-- Events: who joined and left, and what became of the chat's title and its owners. They are no messages: they have no ids
-- of messages, and nobody acks them. The field event of info is the number of the latest one. The LIST events has the
-- newest 100, of at most 32 KiB, in the order of their numbers: JSON arrays,
--
--   [ms, id of the newest message at that time, kind, actor or "", …]
--
-- followed by the new title of the chat, or by the first three users whom the event is about, and the number of users if
-- there are more. Without these, it is about the actor.
--
-- uses common/_time.lua
local MAX_EVENTS, MAX_EVENTS_BYTES, MAX_USERS = 100, 32768, 3
local MAX_EDITS = 100

-- Returns whether some of the edits above `known` are no longer listed, and a list of the others, {number, id}. `count`:
-- the number of edits. `known` can be nil: then there is nothing to list.
local function edits_since(edits, count, known)
  local list = {}
  if not known or known >= count then
    return (known or 0) > count, list
  end
  local found = redis.call('ZRANGEBYSCORE', edits, '(' .. digits(known), '+inf', 'WITHSCORES')
  if not found[1] or found[1] == 'dropped' then
    return true, list
  end
  for at = 1, #found, 2 do
    list[#list + 1] = {number = tonumber(found[at + 1]), id = tonumber(found[at])}
  end
  return false, list
end

-- Records an edit of the message `id`.
local function record_edit(info, edits, id)
  local latest = redis.call('ZRANGE', edits, -1, -1, 'WITHSCORES')[2]
  local number = redis.call('HINCRBY', info, 'edits', 1)
  if not latest or tonumber(latest) >= number then -- the latter: the field edits was lost
    redis.call('UNLINK', edits)
    redis.call('ZADD', edits, number - 1, 'dropped')
  end
  redis.call('ZADD', edits, number, id)
  if redis.call('ZCARD', edits) > MAX_EDITS + 1 then
    local oldest = redis.call('ZRANGE', edits, 1, 1, 'WITHSCORES')
    redis.call('ZREM', edits, oldest[1])
    redis.call('ZADD', edits, oldest[2], 'dropped')
  end
end

-- Returns how many of the newest events fit into the limits.
local function count_kept(events)
  local list, bytes = redis.call('LRANGE', events, -MAX_EVENTS, -1), 0
  for at = #list, 1, -1 do
    bytes = bytes + #list[at]
    if bytes > MAX_EVENTS_BYTES then
      return #list - at
    end
  end
  return #list
end

-- Adds an event to a chat whose info has not been lost: it is about `users`, or about the title, if given. It is the
-- script's last write.
local function add_event(info, events, now, last, kind, actor, users, title)
  if redis.call('HEXISTS', info, 'created') == 0 then
    return
  end
  local event = {now, last, kind, actor, title}
  if not title and not (#users == 1 and users[1] == actor) then
    event = {now, last, kind, actor, unpack(users, 1, MAX_USERS)}
    event[#event + 1] = #users > MAX_USERS and #users or nil
  end
  redis.call('HINCRBY', info, 'event', 1)
  redis.call('RPUSH', events, cjson.encode(event))
  redis.call('LTRIM', events, -count_kept(events), -1)
end

-- Returns the events after `known` (all, for a number that this chat has not reached) from the number `first` on; `latest`
-- is the number of the last one.
local function events_since(events, latest, known, first)
  local after = math.max(known and known < latest and known or 0, first - 1)
  if latest == known or after >= latest then
    return {}
  end
  return redis.call('LRANGE', events, after - latest, -1)
end
