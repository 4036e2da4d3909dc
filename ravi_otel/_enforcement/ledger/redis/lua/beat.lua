-- Give a sign of life; one that comes too late revives nothing.
--
-- KEYS: the leases, the operations of this one. ARGV: the lease, for how many milliseconds, and the last two of reap.lua: who comes
-- first after the store was away gives all others time. Answers: 1 it lives, 0 it is over.

local now = redis.call('TIME')
now = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local heard = tonumber(redis.call('GET', KEYS[1] .. ':t') or now)
redis.call('SET', KEYS[1] .. ':t', now, 'EX', 604800)
if now - heard > tonumber(ARGV[3]) then redis.call('SET', KEYS[1] .. ':g', '1', 'PX', ARGV[4]) end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[2], 604800)
return 1
