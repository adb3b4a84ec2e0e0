-- Periodic tasks: a HASH name → "handled schedule enqueued".
-- handled   ms up to which the occurrences of the task have been handled: enqueued or left out
-- schedule  fingerprint of the schedule for which that was written
-- enqueued  the occurrence that was enqueued last: ms; 0: none
-- The field "polled" has the ms of a poller's latest look, or of one POLLED_INTERVAL before; no task has this name.
--
-- uses common/_time.lua
local function read_periodic(periodic, name)
  local handled, schedule, enqueued = string.match(redis.call('HGET', periodic, name) or '', '^(%d+) (%S+) (%d+)$')
  return tonumber(handled), schedule, tonumber(enqueued or 0)
end

local function write_periodic(periodic, name, handled, schedule, enqueued)
  redis.call('HSET', periodic, name, digits(handled) .. ' ' .. schedule .. ' ' .. digits(enqueued))
end
