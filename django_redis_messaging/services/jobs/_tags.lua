-- Tags of the jobs that wait or run. A member of `tags` is TAG QUEUE ID; all scores are 0, so that the jobs of a tag are a
-- range.

-- The members of a job with these fields, which never change.
local function tag_members(id, more)
  local tags, queue = string.match(' ' .. more, ' tags=(%S+) queue=(%S+)')
  local members = {}
  for tag in string.gmatch(tags or '', '[^,]+') do
    members[#members + 1] = tag .. ' ' .. queue .. ' ' .. id
  end
  return members
end

-- rare
local function index_job(records, id, more)
  for _, member in ipairs(tag_members(id, more)) do
    redis.call('ZADD', records.tags, '0', member)
  end
end

-- rare
local function unindex_job(records, id, more)
  for _, member in ipairs(tag_members(id, more)) do
    redis.call('ZREM', records.tags, member)
  end
end

-- Adds a job that waits now to those of its tags, if it has any.
local function add_tags(records, id, more)
  if string.find(more, 'tags=', 1, true) then
    index_job(records, id, more)
  end
end

-- Removes a job that has ended from those of its tags.
local function remove_tags(records, id, more)
  if string.find(more, 'tags=', 1, true) then
    unindex_job(records, id, more)
  end
end
