-- Errors that are the chat's own: a key of another type, or values that this app has not written.
local BROKEN = {'WRONGTYPE', 'attempt to ', 'bad argument', 'must be string'}

-- Calls `read` for one of several chats. A broken chat must not hide the others: its item is then {error}. All other
-- errors are the server's (no memory, a replica) and end the script.
local function isolated(read, ...)
  local succeeded, item = pcall(read, ...)
  if succeeded then
    return item
  end
  local text = type(item) == 'table' and item.err or tostring(item)
  for _, sign in ipairs(BROKEN) do
    if string.find(text, sign, 1, true) then
      return {text}
    end
  end
  error(item, 0)
end
