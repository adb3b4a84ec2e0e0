-- What a user has seen of a chat, as stored in the user's index of chats:
--   0                           nothing: the user is joining
--   last-ms-nonce-epoch-…        the value of newest when the user had acked everything; zeros but the epoch for a member
--                               who never had
--   !position-epoch             data loss was reported to the user at this position
--
-- uses _positions.lua

-- Whether Redis lost what the user had seen: the chat has another epoch, the position is lower than before although
-- positions never move back, or another entry has the id of the one that was the newest. While the position stays,
-- the loss is reported again.
local function has_lost_data(seen, position, chat, log, stored)
  if seen == '0' then
    return false
  end
  local reported_at, reported_epoch = string.match(seen, '^!(%d+)-(%d+)$')
  if reported_at then
    return reported_epoch ~= chat.epoch or position <= tonumber(reported_at)
  end
  local last, stamp, epoch = string.match(seen, '^(%d+)-(%d+-%d+)-(%d+)-')
  local newest_seen = {id = tonumber(last), epoch = epoch, stamp = stamp}
  return position < newest_seen.id or not is_cursor_valid(chat, log, stored, newest_seen)
end
