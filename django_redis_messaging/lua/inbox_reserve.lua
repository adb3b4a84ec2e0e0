-- Writes a chat into a user's index before the user becomes a member.
--
-- uses _index.lua
-- uses _time.lua
--
-- KEYS  1 index: the user's chats
-- ARGV  1 chat id
-- ARGV  2 token of the joining
-- ARGV  3 maximum number of chats of a user
-- Returns 1, or 'full'
local index = KEYS[1]
local chat, new_joining, max_chats = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Only confirmed entries count, so that joinings that were refused or interrupted cannot shut a user out. Their
-- number is limited by the length of the index.
local function is_full()
  local length = redis.call('HLEN', index)
  if length < max_chats or length >= 2 * max_chats then
    return length >= max_chats
  end
  local confirmed = 0
  for _, entry in ipairs(redis.call('HVALS', index)) do
    if string.sub(entry, 1, 1) ~= '?' then
      confirmed = confirmed + 1
    end
  end
  return confirmed >= max_chats
end

local token, _, seen = read_index_entry(index, chat)
if not token and is_full() then
  return 'full'
end
local membership, joining = split_index_token(token or '')
if joining == nil then
  joining = new_joining
elseif joining == new_joining then
  -- A repeat. If one of the calls is refused, it must not remove the entry: another one may have succeeded.
  joining = joining .. '+'
elseif joining ~= new_joining .. '+' then
  -- If another joining has not confirmed its entry yet, the entry names neither. Otherwise each could confirm an
  -- entry that the end of the other's membership then removes, and a member would not find the chat.
  joining = ''
end
write_index_entry(index, chat, membership .. '?' .. joining, milliseconds(), seen or '0')
return 1
