-- Set another limit on a counter, or close it, as an operator asks.
--
-- KEYS: the account. ARGV: the limit, "1" to close it, the epoch that was shown. Answers: its key in words, its state, and what was
-- declared; nothing when it is gone or lives another life by now, three empty words when it cannot be read.

local a, odd = read(KEYS[1])
if not a then return odd and {'', '', ''} end
if a[EPOCH] ~= ARGV[3] then return nil end
local value = tonumber(ARGV[1])
if ARGV[2] == '1' then
  a[LIMIT], a[FLAGS] = 0, NEAR + EXCEEDED + DRAINING
else
  if value > a[LIMIT] then a[FLAGS] = 0 end
  a[LIMIT] = value  -- what was declared stays: a program that states that again changes nothing
end
write(a)
return {call('HGET', a[KEY], 'n') or '', shown(a), call('HGET', a[KEY], 'd') or ''}
