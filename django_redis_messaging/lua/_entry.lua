-- Parses and formats one entry of a chat's log; _log.lua describes the format. `author` and `body` are JSON.
local function parse_entry(entry)
  local ms, nonce, edited, author_size, body_size, start =
    string.match(entry, '^%[(%d+),(%d+),(%-?%d+),(%d+),(%d+),()')
  return {
    ms = ms,
    nonce = nonce,
    edited = tonumber(edited),
    author = string.sub(entry, start, start + author_size - 1),
    after_body = string.sub(entry, start + author_size + 1 + body_size),
  }
end

-- `edited` is the ms of the edit, or minus the ms of the deletion; `after_body` is everything from there to "]".
local function format_entry(parsed, edited, body, after_body)
  local numbers = string.format('[%s,%s,%d,%d,%d,', parsed.ms, parsed.nonce, edited, #parsed.author, #body)
  return numbers .. parsed.author .. ',' .. body .. after_body
end

-- Returns the entry with this id; nil if it is not in the log, or below `first`.
local function read_entry(log, stored, first, last, id)
  if id < first or id > last then
    return nil
  end
  return redis.call('LINDEX', log, id - stored)
end
