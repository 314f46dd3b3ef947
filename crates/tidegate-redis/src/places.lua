-- Places in flight: who holds one, until when. All or nothing of one key.
--
-- KEYS  the places, a sorted set of holders by the microsecond in which they end; the last fence number
-- ARGV  what to do, the holder, and: how many places there are, how long one is held in microseconds
-- reply acquire: whether it has a place, its fence number, how many are held, microseconds until the first of them ends
--       renew: whether it still has its place; release: whether it had one
local clock = redis.call('TIME') -- once: servers before 7.2 give another time at each call
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local call, format, tonumber = redis.call, string.format, tonumber
local places, fences, what, holder = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

if what == 'release' then return { call('ZREM', places, holder) } end

call('ZREMRANGEBYSCORE', places, '-inf', format('%.0f', now))
local holds = call('ZSCORE', places, holder)
local ttl = tonumber(ARGV[4])

local function hold()
  call('ZADD', places, format('%.0f', now + ttl), holder)
  -- The one that ends last may be another's, with a longer time.
  local last = call('ZRANGE', places, -1, -1, 'WITHSCORES')
  call('PEXPIRE', places, format('%.0f', math.ceil((tonumber(last[2]) - now) / 1000) + 1000))
end

if what == 'renew' then
  if not holds then return { 0 } end
  hold()
  return { 1 }
end

local held = call('ZCARD', places)
if not holds and held >= tonumber(ARGV[3]) then
  local first = call('ZRANGE', places, 0, 0, 'WITHSCORES')
  return { 0, 0, held, tonumber(first[2]) - now }
end
-- Larger than all before, and larger than the time: so it grows even if the last one was forgotten.
local fence = math.max(tonumber(call('GET', fences) or 0) + 1, now)
call('SET', fences, format('%.0f', fence), 'PX', format('%.0f', math.ceil(ttl / 1000) + 3600000))
hold()
if not holds then held = held + 1 end
return { 1, fence, held, 0 }
