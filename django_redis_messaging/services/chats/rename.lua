-- Changes the title of a chat.
--
-- uses _events.lua
-- uses _log.lua
-- uses _members.lua
-- uses common/_live.lua
-- uses common/_time.lua
--
-- KEYS  1 info
-- KEYS  2 members
-- KEYS  3 newest
-- ARGV  1 user
-- ARGV  2 title
-- ARGV  3 beginning of the title, without NUL
-- Returns 1, or 'no chat', 'no member'
local info, members, newest = KEYS[1], KEYS[2], KEYS[3]
local user, title, excerpt = ARGV[1], ARGV[2], ARGV[3]

local refusal = refuse_unless_member(info, members, user)
if refusal then
  return refusal
end
local chat, old_title = read_chat(newest), redis.call('HGET', info, 'title')
redis.call('HSET', info, 'title', title)
publish_hint('m', info)
if chat and title ~= old_title then
  add_event(info, milliseconds(), chat.last, 'renamed', user, {}, excerpt)
end
return 1
