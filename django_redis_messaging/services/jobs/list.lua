-- Reads a page of the jobs of a queue that are in one place: from the next one to run, dead jobs and results from the
-- latest on. It looks at MAX_LOOKED jobs at most, so a page may be short, or empty, though more follow.
--
-- uses _queue.lua
-- uses _records.lua
-- uses common/_time.lua
-- reads only
--
-- KEYS  1-15 records, see _records.lua
-- KEYS  16-22 queue, see _queue.lua
-- ARGV  1 place: ready, delayed, parked, leased, dead; or finished: the results of the slot
-- ARGV  2 position behind which the page begins: score; empty for the first page
-- ARGV  3 position: member
-- ARGV  4 number of jobs
-- ARGV  5 bytes of each payload to return; 0: neither payloads nor logs are read
-- ARGV  6 age at which a dead job is deleted: ms
-- Filters, empty or 0 for none:
-- ARGV  7 name of the task, as the state has it
-- ARGV  8 text that the payload contains
-- ARGV  9 what the payload has behind its first item, a text without quotes: the queue of a result
-- ARGV  10 ms at which the job became due, started (leased) or ended, or later
-- ARGV  11 ms before that it did so
-- Returns the score and the member of the next position, empty after the last page; and a list of {id, score, state, payload
-- up to its limit, bytes of the payload, last line of the log up to MAX_LINE bytes, the end of a longer line}
local records, queue = records_at(KEYS), queue_at(KEYS, 1)
local place, position = ARGV[1], {score = ARGV[2], member = ARGV[3]}
local count, excerpt, max_age = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local task, part, mark = ARGV[7], ARGV[8], ARGV[9]
local since, before = tonumber(ARGV[10]), tonumber(ARGV[11])
local now = milliseconds()
local MAX_LOOKED = 250
-- bytes: of what is read from records, beyond which the page ends; of the reply, unless one job has more
local MAX_READ, MAX_REPLY = 1048576, 122880
-- bytes of the last line of a log, and of a longer one's end
local MAX_LINE, LINE_END = 300, 700
-- bytes of a state, from which on only the latest worker is returned
local LONG_STATE = 1000
local zset = place == 'finished' and records.finished or queue[place]
local is_latest_first = place == 'dead' or place == 'finished'
local bytes_read = 0

-- Whether a text is behind another one by their bytes, as members with the same score are: > would use the locale.
local function is_behind(text, other)
  for at = 1, #text do
    local byte, than = string.byte(text, at), string.byte(other, at) or -1
    if byte ~= than then
      return byte > than
    end
  end
  return false
end

-- How many members are before a position or at it; the member there may have gone. Many may have the same score.
local function count_until(score, member)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', zset, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_behind(redis.call('ZRANGE', zset, middle, middle)[1], member) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- The rank of the first member that may be on a page, and that behind the last one.
local function ranks()
  local first, behind = 0, redis.call('ZCARD', zset)
  if place == 'finished' then
    first = redis.call('ZCOUNT', zset, '-inf', now)
  elseif place == 'dead' or place == 'delayed' then -- their scores are the moments to filter by
    local oldest = place == 'dead' and now - max_age + 1 or 0
    first = redis.call('ZCOUNT', zset, '-inf', '(' .. digits(math.max(since, oldest)))
    behind = before > 0 and redis.call('ZCOUNT', zset, '-inf', '(' .. digits(before)) or behind
  end
  if position.member ~= '' and is_latest_first then
    local is_there = tonumber(redis.call('ZSCORE', zset, position.member) or nil) == tonumber(position.score)
    behind = math.min(behind, count_until(position.score, position.member) - (is_there and 1 or 0))
  elseif position.member ~= '' then
    first = math.max(first, count_until(position.score, position.member))
  end
  return first, behind
end

-- When a job became due or ended; of a running one, when its attempt started. Parsing the whole state takes longer.
local function moment_of(head)
  local moment, at = string.match(head, '^%a+.- attempts=%d+/%d+ pushed=%d+ %a+=(%d+)()')
  if place ~= 'leased' then
    return tonumber(moment)
  end
  local first, after = string.match(head, '^ fence=%d+ token=%S+ first=(%d+)()', at)
  return tonumber(string.match(head, '^ last=(%d+)', after) or first or moment)
end

local function has_moment(head)
  if since == 0 and before == 0 then
    return true
  end
  local moment = moment_of(head)
  return moment >= since and (before == 0 or moment < before)
end

local function has_text(payload)
  local at = mark ~= '' and string.match(payload, '^%["[^"]*",()') or 1
  return (mark == '' or string.sub(payload, at, at + #mark - 1) == mark)
    and (part == '' or string.find(payload, part, 1, true) ~= nil)
end

local function shorten(head)
  if #head < LONG_STATE then
    return head
  end
  local state = parse_state(head)
  state.by = string.match(state.by, '[^,]*$')
  return format_state(state)
end

-- The last line of a log, up to its limit, and the end of a longer one.
local function last_line(log)
  local line = string.reverse(string.match(string.reverse(log), '^[^\n]*'))
  if #line <= MAX_LINE + LINE_END then
    return line, ''
  end
  return string.sub(line, 1, MAX_LINE), string.sub(line, -LINE_END)
end

local function read_field(hash, id)
  local text = redis.call('HGET', hash, id) or ''
  bytes_read = bytes_read + #text
  return text
end

-- A job of the page; nil if it has gone, or a filter leaves it out.
local function read_job(id, score)
  local text = read_field(records.states, id)
  local ends = string.find(text, '\n', 1, true)
  local head = ends and string.sub(text, 1, ends - 1) or text
  if head == '' or (task ~= '' and string.match(head, ' task=(%S*)') ~= task) or not has_moment(head) then
    return
  elseif excerpt == 0 and part == '' and mark == '' then
    return {id, score, shorten(head), '', 0, '', ''}
  end
  local payload, log
  if ends then
    payload, log = string.match(text, '^([^\n]*)\n(.*)$', ends + 1)
  else
    payload = read_field(records.jobs, id)
  end
  if not has_text(payload) then
    return
  end
  log = log or (excerpt > 0 and read_field(records.outcomes, id)) or ''
  return {id, score, shorten(head), string.sub(payload, 1, excerpt), #payload, last_line(log)}
end

local function size_of(job)
  return #job[1] + #job[3] + #job[4] + #job[6] + #job[7]
end

local first, behind = ranks()
local low = is_latest_first and math.max(behind - MAX_LOOKED, first) or first
local high = is_latest_first and behind or math.min(first + MAX_LOOKED, behind)
local members = low < high and redis.call('ZRANGE', zset, low, high - 1, 'WITHSCORES') or {}
local jobs, size, looked = {}, 0, 0
while looked < #members / 2 and #jobs < count and bytes_read < MAX_READ do
  local at = is_latest_first and #members - 2 * looked or 2 * looked + 2
  local member, score = members[at - 1], members[at]
  local job = read_job(place == 'parked' and string.match(member, '^%S+ %d+ (.*)$') or member, score)
  size = size + (job and size_of(job) or 0)
  if job and size > MAX_REPLY and #jobs > 0 then
    break
  end
  jobs[#jobs + 1] = job
  looked, position = looked + 1, {score = score, member = member}
end
if looked == behind - first or #members == 0 then
  position = {score = '', member = ''}
end
return {position.score, position.member, jobs}
