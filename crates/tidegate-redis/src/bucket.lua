-- What all scripts about buckets begin with.
--
-- A bucket is the text "level time capacity rate". It is not there when it is full: its time to live is the time to
-- full and a second. Below 2^53 a double is exact, and no number here is larger where it could matter.
local clock = redis.call('TIME') -- once: servers before 7.2 give another time at each call
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local tonumber, format, match, floor, ceil, call = tonumber, string.format, string.match, math.floor, math.ceil, redis.call
-- Several times as fast as the other, but on a machine of 32 bits it cannot say such numbers.
local whole = format('%d', 9007199254740991) == '9007199254740991' and '%d' or '%.0f'

-- level + passed * rate, at most the capacity. A product above 2^53 may be rounded, but never to below it.
local function refilled(level, passed, rate, capacity)
  local gain = passed * rate
  if gain >= capacity - level then return capacity end
  return level + gain
end

-- floor(level * to / from) for level <= from, bit by bit, since the product can be above 2^53.
local function in_proportion(level, to, from)
  local quotient, rest, bit = 0, 0, 4503599627370496 -- 2^52
  while bit >= 1 do
    quotient = quotient * 2
    if rest >= from - rest then
      rest = rest - (from - rest)
      quotient = quotient + 1
    else
      rest = rest * 2
    end
    if to >= bit then
      to = to - bit
      if rest >= from - level then
        rest = rest - (from - level)
        quotient = quotient + 1
      else
        rest = rest + level
      end
    end
    bit = bit / 2
  end
  return quotient
end
