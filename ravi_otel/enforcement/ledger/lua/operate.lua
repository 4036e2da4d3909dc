-- Set another limit on a counter, or close it, as an operator asks.
--
-- KEYS: the account. ARGV: the limit, "1" to close it. Answers: its key in words, its state, and what is declared now; nothing when it is
-- gone.

local a = read(KEYS[1])
if not a then return false end
local value = tonumber(ARGV[1])
if ARGV[2] == '1' then
  a.v, a.f = 0, NEAR + EXCEEDED + DRAINING
else
  if value > a.v then a.f = 0 end
  a.v = value
  redis.call('HSET', a.key, 'd', ARGV[1])  -- so that a program that states the old one again does not lower it
end
write(a)
return {redis.call('HGET', a.key, 'n') or '', a.s, redis.call('HGET', a.key, 'd') or ''}
