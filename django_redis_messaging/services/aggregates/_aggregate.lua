-- Names the keys of an aggregate, which are in the order of AggregateKeys.all. Some scripts take the counts of some
-- periods after them.
local function aggregate_at(keys)
  return {markers = keys[1], periods = keys[2], expiries = keys[3], malformed = keys[4]}
end
