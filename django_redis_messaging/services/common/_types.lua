-- Runs a read command on each key, so that a key of another type raises an error before the first write.
local function check_types(command, ...)
  for _, key in ipairs({...}) do
    redis.call(command, key)
  end
end
