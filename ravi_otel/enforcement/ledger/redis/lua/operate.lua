-- Set another limit on a counter, or close it, as an operator asks.
--
-- KEYS: the account. ARGV: the limit, "1" to close it. Answers: its key in words, its state, and what was declared; nothing when it is
-- gone, three empty words when it cannot be read.

local a, odd = read(KEYS[1])
if not a then return odd and {'', '', ''} end
local value = tonumber(ARGV[1])
if ARGV[2] == '1' then
  a.v, a.f = 0, NEAR + EXCEEDED + DRAINING
else
  if value > a.v then a.f = 0 end
  a.v = value  -- what was declared stays: a program that states that again changes nothing
end
write(a)
return {redis.call('HGET', a.key, 'n') or '', a.s, redis.call('HGET', a.key, 'd') or ''}
