-- A job's state: "status priority attempts most fence token pushed first last moment workers unique".
-- status    w waits, r runs, s succeeded, d dead, c cancelled
-- most      attempts it may have
-- fence     of its latest lease; token: what its holder drew
-- pushed, first, last    ms: pushed, first and latest attempt begun (0: never)
-- moment    ms at which it is due, while it waits or runs; at which it ended, then
-- workers   who made the attempts, with commas between; - for nobody
-- unique    key that nobody else may have meanwhile; empty for none
local STATE = '^(%a) (%S+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$'

local function state_of(text)
  local status, priority, attempts, most, fence, token, pushed, first, last, moment, workers, unique =
    string.match(text, STATE)
  return {
    status = status,
    priority = tonumber(priority),
    attempts = tonumber(attempts),
    most = tonumber(most),
    fence = fence,
    token = token,
    pushed = pushed,
    first = first,
    last = last,
    moment = moment,
    workers = workers,
    unique = unique,
  }
end

local function text_of(state)
  return table.concat({
    state.status, state.priority, state.attempts, state.most, state.fence, state.token, state.pushed,
    state.first, state.last, state.moment, state.workers, state.unique,
  }, ' ')
end
