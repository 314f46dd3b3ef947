-- Lends tokens of a bucket, and takes back what is left of a loan: `Lender` of tidegate_core::lease, in whole microseconds.
--
-- KEYS  the bucket; what was lent of it
-- ARGV  capacity, rate, units in a token (units; units per microsecond), time to live of a loan in microseconds; then in
--       tokens: cost of the first call that waits, cost of all that wait, chunk; tokens given back, and when they were lent
-- reply whether the first call can be paid, tokens lent, when, level after that or before the refusal in units, how far the
--       clock stands behind the last charge, tokens taken back; or -1 alone if a key holds something else
--
-- What was lent is the text "period most most chunks chunks ttl bucket": the number of the present time to live; for it and
-- the one before, the most tokens that the bucket held, rounded up, and the tokens lent in chunks; the time to live; and the
-- bucket as it was left here. Where it is not as it was left, somebody else charged it, and how full it was before that is
-- not known: it counts as full, so that no token comes back which could have been lost in a full bucket.
local max, min = math.max, math.min
local quota = ' ' .. ARGV[1] .. ' ' .. ARGV[2]
local capacity, rate, token, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first, waiting, chunk = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local returned, lent_at = tonumber(ARGV[8]), tonumber(ARGV[9])
local burst = floor(capacity / token)

local stored = call('GET', KEYS[1])
local level, time = capacity, now
local written = quota
if stored then
  local l, t, w = match(stored, '^(%d+) (%d+)( %d+ %d+)$')
  if not l then return { -1 } end
  level, time, written = tonumber(l), tonumber(t), w
  local c, r = match(written, '^ (%d+) (%d+)$')
  c, r = tonumber(c), tonumber(r)
  if now > time then level, time = refilled(level, now - time, r, c), now end
  if c ~= capacity then level = in_proportion(level, capacity, c) end
end
local lag = time - now

-- How full the bucket was, in this time to live and the one before.
local period = floor(now / ttl)
local lent = call('GET', KEYS[2])
local p, most, before, chunks, chunks_before, life, left
if lent then
  p, most, before, chunks, chunks_before, life, left = match(lent, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.+)$')
  if not p then return { -1 } end
end
local full = ceil(level / token)
if lent and life == ARGV[4] then
  p, most, before = tonumber(p), tonumber(most), tonumber(before)
  chunks, chunks_before = tonumber(chunks), tonumber(chunks_before)
  if stored and (stored ~= left or written ~= quota) then full = burst end
  if period <= p then
    -- A clock that went back stays in the period it was in.
    period, most = p, max(most, full)
  elseif period == p + 1 then
    most, before = full, max(most, full)
    chunks, chunks_before = 0, chunks
  else
    most, before, chunks, chunks_before = full, full, 0, 0
  end
else
  -- Nothing is known of what was lent, if anything was.
  returned = 0
  if lent then full = burst end
  most, before, chunks, chunks_before = full, full, 0, 0
end

local age = now - lent_at
if returned > 0 and age >= 0 and age <= ttl then
  returned = max(0, min(returned, burst - max(most, before)))
  level = level + returned * token
  most, before = most + returned, before + returned
else
  returned = 0
end

local paid, tokens = 1, 0
if level < first * token then
  paid = 0
else
  waiting = max(waiting, first)
  local there = floor(level / token)
  if there < waiting + chunk + chunks + chunks_before then chunk = 0 end
  tokens = min(waiting + chunk, there)
  level = level - tokens * token
  chunks = chunks + chunk
end

-- A bucket that was under another quota fills at the new rate from now on, also if nothing is taken.
if tokens > 0 or returned > 0 or written ~= quota then
  local text = whole .. ' ' .. whole
  local bucket = format(text, level, time) .. quota
  local until_full = ceil((capacity - level) / rate) + lag
  call('SET', KEYS[1], bucket, 'PX', format(whole, ceil(until_full / 1000) + 1000))
  local state = format(text .. ' ' .. text .. ' ' .. whole, period, most, before, chunks, chunks_before)
  -- Longer than any loan lives.
  call('SET', KEYS[2], state .. ' ' .. ARGV[4] .. ' ' .. bucket, 'PX', format(whole, ceil(ttl / 500) + 1000))
end
return { paid, tokens, now, level, lag, returned }
