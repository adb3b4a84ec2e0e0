-- Releases the share of a consumer: its files no longer wait for it.
--
-- uses _files.lua
--
-- KEYS  1 state
-- KEYS  2 consumers
-- KEYS  3 positions
-- KEYS  4 files
-- KEYS  5 trash
-- ARGV  1 consumer; empty: a place that no consumer has taken
-- Returns {found, member…}: 1 if there was such a consumer or place, else 0; members of the trash
local state, consumers, positions, files, trash = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumer = ARGV[1]

redis.call('HDEL', state, '') -- a full server refuses no write after this one
local found
if consumer ~= '' then
  found = remove_consumer(consumers, positions, consumer)
else
  found = tonumber(redis.call('HGET', state, 'places') or 0) > 0
  if found then
    redis.call('HINCRBY', state, 'places', -1)
  end
end
free_acked(state, positions, files, trash)
return with_trash({found and 1 or 0}, trash)
