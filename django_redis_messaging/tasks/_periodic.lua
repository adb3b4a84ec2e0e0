-- How far schedules are: a HASH name → "handled schedule enqueued", and while a schedule is paused " paused=" and since
-- when (ms). The name is that of a declared task, or "schedule:" and the name of a stored schedule.
-- handled   ms up to which the occurrences have been handled: enqueued or left out
-- schedule  fingerprint of the schedule for which that was written
-- enqueued  the occurrence that was enqueued last: ms; 0: none
-- The field "polled" has the ms of a poller's latest look, or of one POLLED_INTERVAL before; "changed" has a number that
-- grows whenever a stored schedule is added, changed or removed. No schedule has one of these names.
--
-- uses common/_time.lua
local function parse_periodic(text)
  local handled, schedule, enqueued, more = string.match(text or '', '^(%d+) (%S+) (%d+)(.*)$')
  local paused = string.match(more or '', '^ paused=(%d+)$')
  return tonumber(handled), schedule, tonumber(enqueued or 0), tonumber(paused)
end

local function read_periodic(periodic, name)
  return parse_periodic(redis.call('HGET', periodic, name) or '')
end

local function write_periodic(periodic, name, handled, schedule, enqueued, paused)
  local text = digits(handled) .. ' ' .. schedule .. ' ' .. digits(enqueued)
  redis.call('HSET', periodic, name, paused and text .. ' paused=' .. digits(paused) or text)
end

-- Lets all pollers read the stored schedules anew.
-- rare
local function note_change(periodic, now)
  local changed = tonumber(redis.call('HGET', periodic, 'changed') or 0)
  redis.call('HSET', periodic, 'changed', digits(math.max(changed + 1, now)))
end
