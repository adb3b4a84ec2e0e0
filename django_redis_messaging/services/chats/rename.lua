-- Changes the title of a chat.
--
-- uses _chat.lua
-- uses _info.lua
-- uses _members.lua
-- uses common/_hints.lua
-- uses common/_time.lua
--
-- KEYS  1-12 chat (_chat.lua)
-- ARGV  1 user
-- ARGV  2 title
-- ARGV  3 beginning of the title, without NUL
-- Returns 1, or 'no chat', 'no member'
local keys = chat_at(KEYS)
local user, title, excerpt = ARGV[1], ARGV[2], ARGV[3]

local refusal = refuse_unless_member(keys.info, keys.members, user)
if refusal then
  return refusal
end
local chat, old_title = read_chat(keys.newest), redis.call('HGET', keys.info, 'title')
redis.call('LLEN', keys.events)
redis.call('HSET', keys.info, 'title', title)
publish_hint('m', keys.info)
if chat and title ~= old_title then
  add_event(keys.info, keys.events, milliseconds(), chat.last, 'renamed', user, {}, excerpt)
end
return 1
