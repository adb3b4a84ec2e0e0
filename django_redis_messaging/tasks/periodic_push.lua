-- Enqueues an occurrence of a schedule, unless it has been handled. It is left out if it was missed, if it is the one
-- that was enqueued last, or if another job has its unique key. One that was enqueued before while the clock was ahead
-- is enqueued again, under the same id, when it has ended; not if it is dead in another queue, which the task had then:
-- redriving or removing it there would change the new job. Nothing is done for a schedule that is paused, or for a
-- stored one that was changed or removed since the poller has read it.
--
-- uses _periodic.lua
-- uses common/_time.lua
-- uses jobs/_queue.lua
-- uses jobs/_records.lua
-- uses jobs/_results.lua
--
-- KEYS  1-15 records, see jobs/_records.lua
-- KEYS  16-22 queue, see jobs/_queue.lua
-- KEYS  23 periodic
-- ARGV  1 name
-- ARGV  2 fingerprint of the schedule
-- ARGV  3 occurrence: ms
-- ARGV  4 age from which it was missed: ms; 0: it is enqueued at any age
-- ARGV  5 limit of waiting jobs in the queue
-- ARGV  6 id
-- ARGV  7 payload
-- ARGV  8 priority
-- ARGV  9 max attempts
-- ARGV  10 unique key
-- ARGV  11 the other fields that never change, as text: see jobs/_records.lua
-- Returns when it was enqueued (ms); 0 if it was handled before, left out, or nothing was done; if the limit is
-- exceeded, minus the number of jobs that would wait, with nothing done
local records, queue, periodic = records_at(KEYS), queue_at(KEYS, 1), KEYS[23]
local name, schedule, moment, max_age = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local max_waiting, id, payload = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local priority, max_attempts, unique, more = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local now = milliseconds()

-- Whether the job is dead in another queue. One that was removed from the dead jobs is among the finished ones.
local function is_dead_elsewhere(state)
  return state and state.status == 'dead' and not redis.call('ZSCORE', queue.dead, id)
    and not redis.call('ZSCORE', records.finished, id)
end

local handled, known_schedule, enqueued, paused = read_periodic(periodic, name)
local is_stale = string.find(name, 'schedule:', 1, true) == 1 and known_schedule ~= schedule
if paused or is_stale or (handled and moment <= handled) then
  return 0
end
local missed = max_age > 0 and now - moment >= max_age
local known = read_state(records, id)
local is_enqueued = moment == enqueued or (known and not has_ended(known))
if missed or is_enqueued or is_dead_elsewhere(known) or (unique ~= '' and unique_holder(records, unique, more)) then
  write_periodic(periodic, name, moment, schedule, enqueued)
  return 0
end
local waiting = count_waiting(queue) + redis.call('ZCARD', queue.parked) + 1
if waiting > max_waiting then
  return -waiting
end
if known then
  redis.call('ZREM', queue.dead, id)
  redis.call('ZREM', records.finished, id)
  delete_job(records, id)
end
write_periodic(periodic, name, moment, schedule, moment)
add_job(records, id, payload, now, now, priority, max_attempts, unique, more)
enqueue(queue, records, id, priority, now, now, more)
return now
