-- Redis refuses commands that need memory while it is full, but not after the script has written once. HDEL is
-- never refused: called first, it lets acks and deletions succeed on a full server. The empty field removes nothing.
local function allow_writes_when_full(hash)
  redis.call('HDEL', hash, '')
end
