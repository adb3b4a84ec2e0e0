-- Reads messages by their ids.
--
-- reads only
-- uses _chat.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_time.lua
--
-- KEYS  1-5 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 maximum number of bytes of all entries
-- ARGV  3-5 limits of the log (_chat.lua)
-- ARGV  6… ids, in ascending order
-- Returns {epoch, {id, …} of the entries that the user can see and that fit, entry, …}, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user, max_bytes = ARGV[1], tonumber(ARGV[2])
local limits = limits_of(ARGV[3], ARGV[4], ARGV[5])

local chat = read_chat(keys.newest)
if not chat then
  return 'no chat'
end
local join_id = read_membership(keys.roster, user)
if not join_id then
  return 'no member'
end
local first, stored = apply_retention(chat, keys.members, keys.log, milliseconds(), limits)
local oldest = math.max(first, join_id + 1)

local ids, entries, size = {}, {}, 0
for at = 6, #ARGV do
  local id = tonumber(ARGV[at])
  if id >= oldest and id <= chat.last then
    local entry = redis.call('LINDEX', keys.log, id - stored)
    size = size + #entry
    if size > max_bytes and #ids > 0 then
      break
    end
    ids[#ids + 1], entries[#entries + 1] = id, entry
  end
end
return {chat.epoch, ids, unpack(entries)}
