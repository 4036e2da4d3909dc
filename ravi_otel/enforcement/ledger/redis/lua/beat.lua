-- Give a sign of life; one that comes too late revives nothing.
--
-- KEYS: the leases, the operations of this one. ARGV: the lease, for how many milliseconds. Answers: 1 it lives, 0 it is over.

if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[2], 604800)
return 1
