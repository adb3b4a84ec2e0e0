-- Notes that a worker lives, and when it last consumed something; forgets those that are silent.
--
-- uses _clock.lua
--
-- KEYS  1 workers
-- ARGV  1 worker
-- ARGV  2 whether it consumed since its last beat: 1 or 0
-- ARGV  3 ms at which it began, by the server's clock; 0 at first
-- ARGV  4 jobs it runs
-- ARGV  5 jobs it has done
-- ARGV  6 silence after which a worker is forgotten: ms
-- Returns the server's clock (ms)
local now = clock()
local consumed = '0'
-- Of nothing: without memory what follows would be refused, unless a removal came before.
local silent = {''}
local lines = redis.call('HGETALL', KEYS[1])
for at = 1, #lines, 2 do
  local beat, when = string.match(lines[at + 1], '^(%d+) (%d+)')
  if lines[at] == ARGV[1] then
    consumed = when
  elseif tonumber(beat) + tonumber(ARGV[6]) < now then
    silent[#silent + 1] = lines[at]
  end
end
redis.call('HDEL', KEYS[1], unpack(silent))
local clocked = string.format('%.0f', now)
consumed = ARGV[2] == '1' and clocked or consumed
local began = ARGV[3] == '0' and clocked or ARGV[3]
redis.call('HSET', KEYS[1], ARGV[1], table.concat({clocked, consumed, began, ARGV[4], ARGV[5]}, ' '))
return now
