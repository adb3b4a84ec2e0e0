-- A number as keys and replies have it: all its digits.
local function digits(number)
  return string.format('%.0f', number)
end
