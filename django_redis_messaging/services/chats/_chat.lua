-- A chat: its keys, what its key newest holds, and the limits of its log.
--
-- The key newest holds what most scripts need, seven numbers with "-" between them: id, time (ms) and nonce of the newest
-- entry, the chat's epoch, the number of entries kept for scroll-back, the bytes of all entries that were ever appended,
-- and 1 if the log expires, otherwise 0. It is one text because an inbox reads those of all its chats by one MGET and
-- compares them with what the user has seen: a HASH for each chat would take a script.

-- The keys of a chat, in the order of ChatKeys in services/chats/keys.py. A script that gets the first ones only must not
-- use the others.
local function chat_at(keys)
  return {
    newest = keys[1], members = keys[2], own = keys[3], log = keys[4], roster = keys[5],
    info = keys[6], standing = keys[7], mutes = keys[8],
    hidden = keys[9], typing = keys[10], edits = keys[11], events = keys[12],
    removed = keys[13], opted_out = keys[14], requests = {keys[15], keys[16]},
  }
end

-- The keys that are deleted with the chat: all but the requests, which stay for late repeats.
local function keys_to_delete(keys)
  return unpack(keys, 1, 14)
end

-- The limits of a log, from the arguments of a script: number of entries, their age (ms, 0: none), and their bytes.
-- Without bytes, that limit is not applied: lists of chats leave it to writes and other reads, because it would load an
-- entry of each chat.
local function limits_of(length, age, bytes)
  return {length = tonumber(length), age = tonumber(age), bytes = tonumber(bytes or math.huge)}
end

-- What the value of newest consists of: last, stamp, ms, epoch, keep, total, expires.
local NEWEST = '^(%d+)-((%d+)-%d+)-(%d+)-(%d+)-(%d+)-([01])$'

-- Returns these as a table, with the value; nil if the chat does not exist.
local function read_chat(newest)
  local value = redis.call('GET', newest)
  if not value then
    return nil
  end
  local last, stamp, ms, epoch, keep, total, expires = string.match(value, NEWEST)
  return {
    last = tonumber(last), ms = ms, stamp = stamp, epoch = epoch, keep = tonumber(keep), total = tonumber(total),
    expires = expires, value = value,
  }
end

local function format_newest(last, stamp, epoch, keep, total, expires)
  return last .. '-' .. stamp .. '-' .. epoch .. '-' .. keep .. '-' .. total .. '-' .. expires
end

-- Returns the value of newest for a new entry; its content begins with the nonce. `max_age`: ms, or 0.
local function newest_value(id, ms, content, epoch, keep, total, max_age)
  local stamp = ms .. '-' .. (string.match(content, '^%d+') or '0')
  return format_newest(id, stamp, epoch, keep, total, max_age > 0 and '1' or '0')
end

-- Calls `read` for one of several chats. A broken chat must not hide the others: its item is then {error}. All other
-- errors are the server's (no memory, a replica) and end the script.
local function isolated(read, ...)
  local succeeded, item = pcall(read, ...)
  if succeeded then
    return item
  end
  local text = type(item) == 'table' and item.err or tostring(item)
  -- Errors that are the chat's own: a key of another type, or values that this app has not written.
  for _, sign in ipairs({'WRONGTYPE', 'attempt to ', 'bad argument', 'must be string'}) do
    if string.find(text, sign, 1, true) then
      return {text}
    end
  end
  error(item, 0)
end
