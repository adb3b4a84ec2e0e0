-- Reads keys by a command of their type: one that holds another type is an error then, before the first write.
local function check_types(command, ...)
  for _, key in ipairs({...}) do
    redis.call(command, key)
  end
end
