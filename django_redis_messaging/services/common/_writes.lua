-- What a script does before its first write.

-- Runs a read command on each key, so that a key of another type raises an error before anything has changed.
local function check_types(command, ...)
  for _, key in ipairs({...}) do
    redis.call(command, key)
  end
end

-- Redis refuses commands that need memory while it is full, but not after the script has written once. HDEL is
-- never refused: called first, it lets acks and deletions succeed on a full server. The empty field removes nothing.
local function allow_writes_when_full(hash)
  redis.call('HDEL', hash, '')
end
