-- The index of edits of a chat: the fields edits (how many there were) and edited of its info. The latter is
-- "dropped number:id number:id …": the 100 messages edited or deleted last, each with the number of its latest edit,
-- in the order of these numbers, after the highest number that is no longer listed.

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
  if listed >= 100 then
    line = string.gsub(line, '^%d+ (%d+):%d+', '%1')
  end
  redis.call('HSET', info, 'edits', count + 1, 'edited', line .. count + 1 .. ':' .. id)
end
