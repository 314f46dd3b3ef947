-- Decides calls in order, each in one bucket or several, all or none. Units, bounds and promises: units.rs and script.rs.
--
-- KEYS  the buckets, each once
-- ARGV  for each bucket: capacity, rate (units; units per microsecond)
--       then for each call: 1 to charge it or 0 to look, how many buckets, and for each: its index in KEYS, the cost in
--       units. A negative index is a limit in shadow, which refuses nothing.
-- reply for each bucket: how far the clock stands behind its last charge, in microseconds
--       then for each call: 1 allowed or 0 refused, and for each of its buckets the level before it, in units
--
-- A bucket is the text "level time capacity rate". It is not there when it is full: its time to live is the time to
-- full and a second. Below 2^53 a double is exact, and no number here is larger where it could matter.
local clock = redis.call('TIME') -- once: servers before 7.2 give another time at each call
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local tonumber, format, match = tonumber, string.format, string.match

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

local reply, level, time, spent = {}, {}, {}, {}
for i, key in ipairs(KEYS) do
  local capacity, rate = ARGV[2 * i - 1], ARGV[2 * i]
  local stored = redis.call('GET', key)
  if stored then
    local l, t, c, r = match(stored, '^(%d+) (%d+) (%d+) (%d+)$')
    if not l then
      return redis.error_reply('TIDEGATEFOREIGN a key of the limiter holds something else')
    end
    l, t = tonumber(l), tonumber(t)
    if now > t then
      l = refilled(l, now - t, tonumber(r), tonumber(c))
      t = now
    end
    -- Another quota than the one it was written under: as full in proportion.
    if c ~= capacity then l = in_proportion(l, tonumber(capacity), tonumber(c)) end
    level[i], time[i] = l, t
  else
    level[i], time[i] = tonumber(capacity), now
  end
  reply[i] = time[i] - now
end

local at, out, last = 2 * #KEYS + 1, #KEYS, #ARGV
while at < last do
  local charge, buckets = ARGV[at] == '1', tonumber(ARGV[at + 1])
  local first, allowed = at + 2, true
  at = first + 2 * buckets
  out = out + 1
  local verdict = out
  for a = first, at - 1, 2 do
    local i = tonumber(ARGV[a])
    if i > 0 then
      if level[i] < tonumber(ARGV[a + 1]) then allowed = false end
    else
      i = -i
    end
    out = out + 1
    reply[out] = level[i]
  end
  reply[verdict] = allowed and 1 or 0
  if allowed and charge then
    for a = first, at - 1, 2 do
      local i, cost = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
      if i < 0 then i = -i end
      if cost > 0 and level[i] >= cost then
        level[i] = level[i] - cost
        spent[i] = true
      end
    end
  end
end

for i, key in ipairs(KEYS) do
  if spent[i] then
    local capacity, rate = ARGV[2 * i - 1], ARGV[2 * i]
    local until_full = math.ceil((tonumber(capacity) - level[i]) / tonumber(rate)) + time[i] - now
    redis.call('SET', key, format('%.0f %.0f %s %s', level[i], time[i], capacity, rate),
      'PX', format('%.0f', math.ceil(until_full / 1000) + 1000))
  end
end
return reply
