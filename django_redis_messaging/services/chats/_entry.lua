-- Parses and formats one entry of a chat's log; _log.lua describes the format. `author` and `body` are JSON.
--
-- uses _log.lua
local function parse_entry(entry)
  local ms, nonce, edited, author_size, body_size, start =
    string.match(entry, '^%[(%d+),(%d+),(%-?%d+),(%d+),(%d+),()')
  local offset, size = read_extent(entry)
  local extent = string.format(',%.0f,%d]', offset, size)
  return {
    ms = ms,
    nonce = nonce,
    edited = tonumber(edited),
    author = string.sub(entry, start, start + author_size - 1),
    body = string.sub(entry, start + author_size + 1, start + author_size + body_size),
    optional = string.sub(entry, start + author_size + 1 + body_size, -1 - #extent),
    offset = offset,
    size = size,
  }
end

-- `edited` is the ms of the edit, or minus the ms of the deletion; `optional` is what follows the body, or ''. Returns the
-- entry, and by how much it exceeds its size before.
local function format_entry(parsed, edited, body, optional)
  local numbers = string.format('[%s,%s,%d,%d,%d,', parsed.ms, parsed.nonce, edited, #parsed.author, #body)
  local head = numbers .. parsed.author .. ',' .. body .. optional
  local size = math.max(#head, parsed.size)
  return string.format('%s,%.0f,%d]', head, parsed.offset, size), size - parsed.size
end

-- Returns a JSON string cut to at most `size` bytes and an ellipsis, not within a character or an escape.
local function cut_string(json, size)
  while string.find(json, '^[\128-\191]', size) do
    size = size - 1
  end
  local cut = string.sub(json, 1, size - 1)
  local slashes, rest = string.match(cut, '(\\*)(u?%x?%x?%x?)$')
  if #slashes % 2 == 1 then
    cut = string.sub(cut, 1, -2 - #rest)
  end
  return cut .. '…"'
end

-- Returns an entry for a list: a long one without what follows the body, which is cut to `size` bytes of JSON.
local function excerpt(entry, size)
  if #entry <= size then
    return entry
  end
  local parsed = parse_entry(entry)
  local body = #parsed.body > size and cut_string(parsed.body, size) or parsed.body
  return (format_entry(parsed, parsed.edited, body, ''))
end

-- Returns the entry with this id; nil if it is not in the log, or below `first`.
local function read_entry(log, stored, first, last, id)
  if id < first or id > last then
    return nil
  end
  return redis.call('LINDEX', log, id - stored)
end
