-- A client that polls in a queue also keeps other clients of its process there.

-- Sets the score of those tokens that are in the set; returns the others: these clients must poll themselves. Callers
-- have written before.
local function keep_waiters(set, score, tokens)
  local kept, gone = {}, {}
  if #tokens == 0 then
    return gone
  end
  for at, found in ipairs(redis.call('ZMSCORE', set, unpack(tokens))) do
    if found then
      kept[#kept + 1], kept[#kept + 2] = score, tokens[at]
    else
      gone[#gone + 1] = tokens[at]
    end
  end
  if #kept > 0 then
    redis.call('ZADD', set, unpack(kept))
  end
  return gone
end
