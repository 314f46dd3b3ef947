-- Decides calls in order, each in one bucket or several, all or none. Units, bounds and promises: units.rs and script.rs.
--
-- KEYS  the buckets, each once; those of one quota side by side
-- ARGV  how many quotas, and for each: how many of the next keys have it, capacity, rate (units; units per microsecond)
--       then calls, those that are the same and have nothing between them as one: how many (negative: they are looks), how
--       many buckets, and for each: its index in KEYS, the cost in units. A negative index is a limit in shadow.
-- reply how many numbers follow of this kind: for each bucket how far the clock stands behind its last charge, in
--       microseconds; none, if it does so for no bucket
--       then for each of the calls: how many of them are allowed, the first ones, or -1 if a key of theirs holds something
--       else; for each bucket the level before them
local keys, argv = KEYS, ARGV
local level, time, capacity_of, rate_of, quota_of, spent, foreign = {}, {}, {}, {}, {}, {}, {}
local at, i, behind = 2, 0, false
for _ = 1, tonumber(argv[1]) do
  local capacity, rate = tonumber(argv[at + 1]), tonumber(argv[at + 2])
  local quota = ' ' .. argv[at + 1] .. ' ' .. argv[at + 2]
  for _ = 1, tonumber(argv[at]) do
    i = i + 1
    -- An error of this key must not be one of all calls that came along.
    local stored = redis.pcall('GET', keys[i])
    local l, t = capacity, now
    local left, wrote, written
    if stored and type(stored) == 'string' then
      left, wrote, written = match(stored, '^(%d+) (%d+)( %d+ %d+)$')
    end
    if left then
      l, t = tonumber(left), tonumber(wrote)
      local c, r = capacity, rate
      if written ~= quota then
        c, r = match(written, '^ (%d+) (%d+)$')
        c, r = tonumber(c), tonumber(r)
      end
      if now > t then
        l, t = refilled(l, now - t, r, c), now
      elseif now < t then
        behind = true
      end
      -- Another quota than the one it was written under: as full in proportion.
      if c ~= capacity then l = in_proportion(l, capacity, c) end
    elseif stored then
      foreign[i] = true
    end
    level[i], time[i], capacity_of[i], rate_of[i], quota_of[i] = l, t, capacity, rate, quota
  end
  at = at + 3
end

local reply, out, last = { 0 }, 1, #argv
if behind then
  reply[1], out = #keys, 1 + #keys
  for k = 1, #keys do reply[1 + k] = time[k] - now end
end
local index, costs = {}, {}
while at < last do
  local calls, buckets = tonumber(argv[at]), tonumber(argv[at + 1])
  local charge = calls > 0
  if not charge then calls = -calls end
  out = out + 1
  local verdict, allowed, readable = out, calls, true
  at = at + 2
  for b = 1, buckets do
    local k, cost = tonumber(argv[at]), tonumber(argv[at + 1])
    at = at + 2
    index[b], costs[b] = k, cost
    if k > 0 then
      local l = level[k]
      if l < cost then
        allowed = 0
      elseif charge and l < cost * allowed then
        allowed = floor(l / cost)
      end
    else
      k = -k
    end
    if foreign[k] then readable = false end
    out = out + 1
    reply[out] = level[k]
  end
  if not readable then allowed = -1 end
  reply[verdict] = allowed
  if charge and allowed > 0 then
    for b = 1, buckets do
      local k, cost, times = index[b], costs[b], allowed
      if k < 0 then
        k = -k
        -- A limit in shadow is charged as long as it would allow it.
        if level[k] < cost * times then times = floor(level[k] / cost) end
      end
      if cost > 0 and times > 0 then
        level[k] = level[k] - cost * times
        spent[k] = true
      end
    end
  end
end

local text = whole .. ' ' .. whole .. '%s'
for k = 1, #keys do
  if spent[k] then
    local until_full = ceil((capacity_of[k] - level[k]) / rate_of[k]) + time[k] - now
    call('SET', keys[k], format(text, level[k], time[k], quota_of[k]), 'PX', format(whole, ceil(until_full / 1000) + 1000))
  end
end
return reply
