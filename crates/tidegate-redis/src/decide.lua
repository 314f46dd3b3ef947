-- Decides calls in order, each in one bucket or several, all or none. Units, bounds and promises: units.rs and script.rs.
--
-- KEYS  the buckets, each once; those of one quota side by side
-- ARGV  one array of numbers in MessagePack, which takes much less time to read than as many arguments:
--       how many quotas, and for each: how many of the next keys have it, capacity, rate (units; units per microsecond)
--       then calls, those that are the same and have nothing between them as one: how many (negative: they are looks), how
--       many buckets, and for each: its index in KEYS, the cost in units. A negative index is a limit in shadow.
-- reply how many numbers follow of this kind: for each bucket how far the clock stands behind its last charge, in
--       microseconds; none, if it does so for no bucket
--       then for each of the calls: how many of them are allowed, the first ones, or -1 if a key of theirs holds something
--       else; for each bucket the level before them
local keys, plan, pcall, type = KEYS, cmsgpack.unpack(ARGV[1]), redis.pcall, type
local level, quota_of, ahead, written, foreign = {}, {}, {}, {}, {}
local at, i, behind = 2, 0, false
for _ = 1, plan[1] do
  local capacity, rate = plan[at + 1], plan[at + 2]
  local text = ' ' .. format(whole, capacity) .. ' ' .. format(whole, rate)
  local quota, as_usual = { capacity = capacity, rate = rate, text = text }, '^(%d+) (%d+)' .. text .. '$'
  for _ = 1, plan[at] do
    i = i + 1
    -- An error of this key must not be one of all calls that came along.
    local stored = pcall('GET', keys[i])
    local l = capacity
    if stored then
      local c, r = capacity, rate
      local left, time
      if type(stored) == 'string' then
        left, time = match(stored, as_usual)
        if not left then left, time, c, r = match(stored, '^(%d+) (%d+) (%d+) (%d+)$') end
      end
      if left then
        -- Sums make numbers of texts, without the call that `tonumber` is.
        l, time, c, r = left + 0, time + 0, c + 0, r + 0
        if now > time then
          l = refilled(l, now - time, r, c)
        elseif now < time then
          ahead[i], behind = time, true
        end
        -- Another quota than the one it was written under: as full in proportion.
        if c ~= capacity then l = in_proportion(l, capacity, c) end
        -- From now on it fills at the new rate, also if nothing is taken: the waits that are told are by that rate.
        if c ~= capacity or r ~= rate then written[i] = true end
      else
        foreign[i] = true
      end
    end
    level[i], quota_of[i] = l, quota
  end
  at = at + 3
end

local reply, out, last = { 0 }, 1, #plan
if behind then
  reply[1], out = #keys, 1 + #keys
  for k = 1, #keys do reply[1 + k] = (ahead[k] or now) - now end
end
while at < last do
  local calls, first, final = plan[at], at + 2, at + 2 * plan[at + 1]
  local charge = calls > 0
  if not charge then calls = -calls end
  out = out + 1
  local verdict, allowed, readable = out, calls, true
  for b = first, final, 2 do
    local k, cost = plan[b], plan[b + 1]
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
    for b = first, final, 2 do
      local k, cost, times = plan[b], plan[b + 1], allowed
      if k < 0 then
        k = -k
        -- A limit in shadow is charged as long as it would allow it.
        if level[k] < cost * times then times = floor(level[k] / cost) end
      end
      if cost > 0 and times > 0 then
        level[k] = level[k] - cost * times
        written[k] = true
      end
    end
  end
  at = final + 2
end

local text = whole .. ' ' .. whole .. '%s'
for k = 1, #keys do
  if written[k] then
    local quota, time = quota_of[k], ahead[k] or now
    local until_full = ceil((quota.capacity - level[k]) / quota.rate) + time - now
    call('SET', keys[k], format(text, level[k], time, quota.text), 'PX', format(whole, ceil(until_full / 1000) + 1000))
  end
end
return reply
