-- End what silent processes left behind: settle it at its grant until they say otherwise, and give slots back. Bounded: who calls it
-- comes again while there is more.
--
-- KEYS: the leases, those that are being ended. ARGV: what the names of operations begin with, "1" to end everybody's but one lease's,
-- that lease, after how many ms in which nobody was heard of it was perhaps the store that was away, how many ms all live on then.
-- Answers: how many leases ended now, how many are still to be done, what time it is in ms.

local MOST_LEASES, MOST_OPERATIONS, WEEK = 16, 200, 604800

local now = redis.call('TIME')
now = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local ended = 0
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] == '1' and '+inf' or '(' .. now, 'LIMIT', 0, MOST_LEASES)
if ARGV[2] ~= '1' then
  local heard = tonumber(redis.call('GET', KEYS[1] .. ':t') or now)
  redis.call('SET', KEYS[1] .. ':t', now, 'EX', WEEK)
  if #over > 0 and now - heard > tonumber(ARGV[4]) then redis.call('SET', KEYS[1] .. ':g', '1', 'PX', ARGV[5]) end
  if redis.call('EXISTS', KEYS[1] .. ':g') == 1 then over = {} end
end
for _, lease in ipairs(over) do
  if lease ~= ARGV[3] or ARGV[2] ~= '1' then
    redis.call('ZREM', KEYS[1], lease)
    redis.call('ZADD', KEYS[2], now, lease)
    ended = ended + 1
  end
end

local function settle(letter, key, hold, back)
  local a = read(key)
  if not a then return end
  a[HELD] = a[HELD] - hold
  -- what this crosses is told by whoever knows the limit, next time
  if letter == 'S' then a[USED] = a[USED] - back else a[USED] = a[USED] + hold end
  write(a)
end

local function bury(operations, name, record)
  local letter, held, keys = sub(record, 1, 1), parts(record)
  local at = 0
  for key in string.gmatch(keys or '', '%S+') do
    at = at + 1
    if at <= held[2] then settle(letter, key, held[2 * at + 2], held[2 * at + 3]) end
  end
  call('HDEL', operations, name)
  call('HSET', operations .. ':p', name, (letter == 'S' and 'R' or 'P') .. sub(record, 2))
end

local done = 0
for _, lease in ipairs(redis.call('ZRANGE', KEYS[2], 0, MOST_LEASES - 1)) do
  local operations = ARGV[1] .. lease
  local cursor = '0'
  repeat
    local page = redis.call('HSCAN', operations, cursor, 'COUNT', 100)
    cursor = page[1]
    for at = 1, #page[2], 2 do
      if page[2][at] ~= '@' then
        bury(operations, page[2][at], page[2][at + 1])
        done = done + 1
      end
    end
  until cursor == '0' or done >= MOST_OPERATIONS
  if redis.call('HLEN', operations) <= 1 then
    redis.call('DEL', operations)
    redis.call('EXPIRE', operations .. ':p', WEEK)
    redis.call('ZREM', KEYS[2], lease)
  end
  if done >= MOST_OPERATIONS then break end
end
return {ended, redis.call('ZCARD', KEYS[2]), now}
