-- Hints for the processes that push changes to browsers: what has changed, never how. They are published to the channel
-- "PREFIX:2:live", as a kind, the resource as it is in the hash tag, and for "a" a NUL and the user:
--
--   m  chat: its messages, members, title or roles
--   a  chat: the position of this user, or their mute
--   t  chat: who is typing, or who hides what they have read
--   u  user: the index of their chats
--   b  mailbox: its mails
--   x  user: signed out somewhere (published by signing_out() in hints.py)
--
-- A lost hint costs time: those processes also look at what they watch every few seconds. So a user without the
-- permission to publish is no error.
local function publish_hint(kind, key, user)
  local start, resource = string.match(key, '^([^{]+){([^}]+)')
  redis.pcall('PUBLISH', start .. 'live', user and kind .. resource .. '\0' .. user or kind .. resource)
end
