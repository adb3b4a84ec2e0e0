-- Places: the scores of the jobs in `ready`. Each priority has a band of 2^45 places, the highest priority first. The groups
-- of a band take turns: a round of places has one job of each group, or as many as its weight. Within a group, jobs are in
-- the order in which they became ready. This is start-time fair queueing (Goyal, Vin and Cheng, 1996); the virtual time is
-- the first place of the band.
--
-- Jobs without a group are a group, too. Their places are even, those of other jobs are odd. As long as the last place of a
-- band is even, the next job without a group gets the place one round behind it, so that nothing else has to be read.
--
-- The fields of `groups`:
-- jobs PRIORITY GROUP  how many jobs of the group have a place in this band
-- last PRIORITY GROUP  the last place that they have got; both fields are deleted when the last one leaves `ready`
-- last PRIORITY        if the last place of the band is odd: the last place that jobs without a group have got
--
-- uses common/_time.lua
local BAND = 2 ^ 45
-- The first half of a band is for jobs that were at the head of the queue before, see _waiting.lua: what is below is about
-- the second one.
local HALF = BAND / 2
-- Places of a round: a multiple of twice each weight from 1 to 8, and of 10, 12, 14, 15, 20 …, whose shares are exact.
local ROUND = 1680

-- The lowest place of the band behind that of a place.
local function next_band(place)
  return digits((math.floor(tonumber(place) / BAND) + 1) * BAND)
end

-- The last place of a band whose second half begins at `low`, of a queue with jobs behind it.
-- rare
local function last_within(queue, low)
  local last = redis.call('ZREVRANGEBYSCORE', queue.ready, '(' .. digits(low + HALF), digits(low), 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(last[2])
end

-- The band of a priority. `last` is its last place; one round before its first place if it has no jobs.
local function band_of(queue, priority)
  local low = (100 - priority) * BAND + HALF
  local last = tonumber(redis.call('ZREVRANGE', queue.ready, '0', '0', 'WITHSCORES')[2])
  if last and last >= low + HALF then
    last = last_within(queue, low)
  end
  return {priority = priority, low = low, last = math.max(last or -ROUND, low - ROUND)}
end

-- The first place of a band that has jobs.
local function first_place(queue, low)
  local first = redis.call('ZRANGEBYSCORE', queue.ready, digits(low), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return tonumber(first[2])
end

-- The group and the weight of a job, from its state or from its fields that never change. The group is nil if it has none.
local function group_of(text)
  local fields = ' ' .. (string.match(text, '^(.-) unique=') or text)
  return string.match(fields, ' group=(%S+)'), tonumber(string.match(fields, ' weight=(%d+)') or 1)
end

-- The next place in a band that has jobs, for a group with this last place, if any. Without one, the group joins the round
-- that begins with the first job of the band, at its end: one job of each other group is before it.
local function next_turn(queue, band, last, weight)
  band.first = band.first or first_place(queue, band.low)
  local step = 2 * math.floor(ROUND / 2 / weight + 0.5)
  return math.max((last or -step) + step, band.first + step - 2)
end

-- The place of a job in a band in which a job with a group is the last one, or this one has a group. Jobs without a group
-- that follow it find their last place if it is noted now: later ones of them are behind all others, or note theirs.
-- rare
local function place_in_group(queue, band, text)
  local group, weight = group_of(text)
  local odd = group and 1 or 0
  local name = group and band.priority .. ' ' .. group or band.priority
  if group and band.last % 2 == 0 then
    redis.call('HSET', queue.groups, 'last ' .. band.priority, digits(band.last))
  end
  local place = band.low + odd
  if band.last >= band.low then
    local last = redis.call('HGET', queue.groups, 'last ' .. name)
    place = next_turn(queue, band, last and tonumber(last), weight)
    place = math.min(place + (place + odd) % 2, band.low + HALF - 2 + odd)
  end
  redis.call('HSET', queue.groups, 'last ' .. name, digits(place))
  if group then
    redis.call('HINCRBY', queue.groups, 'jobs ' .. name, '1')
  end
  return place
end

-- The place of the next job of a band; `text` is its state, or its fields that never change.
local function take_place(queue, band, text)
  local place
  if band.last % 2 == 0 and not string.find(text, 'group=', 1, true) then
    place = math.min(band.last + ROUND, band.low + HALF - 2)
  else
    place = place_in_group(queue, band, text)
  end
  if band.last < band.low then
    band.first = place
  end
  band.last = math.max(band.last, place)
  return place
end

-- rare
local function count_out(queue, state)
  local name = state.priority .. ' ' .. group_of(state.more)
  if redis.call('HINCRBY', queue.groups, 'jobs ' .. name, '-1') <= 0 then
    redis.call('HDEL', queue.groups, 'jobs ' .. name, 'last ' .. name)
    queue.has_left_group = true
  end
end

-- Deletes what is left of `groups` when no job is ready. Called after jobs have left their groups.
local function forget_groups(queue)
  if queue.has_left_group and redis.call('EXISTS', queue.ready) == 0 then
    redis.call('DEL', queue.groups)
  end
end

-- Counts a job out of its group, if it has one, when it has left `ready`.
local function leave_group(queue, state)
  if string.find(state.more, ' group=', 1, true) then
    count_out(queue, state)
  end
end
