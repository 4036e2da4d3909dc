-- Accept that counters were lost, or ask how long ago that was done.
--
-- KEYS: where that is kept. ARGV: for how many seconds it is to be kept, 0 to ask only. Answers: the ms since, and one; 0 where nobody did.

local now = redis.call('TIME')
now = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
if ARGV[1] ~= '0' then
  redis.call('SET', KEYS[1], now, 'EX', ARGV[1])
  return 0
end
local at = tonumber(redis.call('GET', KEYS[1]) or '')
return at and 1 + math.max(0, now - at) or 0
