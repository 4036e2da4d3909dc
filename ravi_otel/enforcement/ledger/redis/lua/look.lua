-- Show an account as it is now, changing nothing. KEYS: the account. ARGV: today, facts and warning level. Answers: its state, U for one
-- that cannot be read, or nothing.

local a, odd = read(KEYS[1])
if not a then return odd and 'U' end
a[TODAY] = ARGV[1]
local facts, warn = match(ARGV[2], '^(%d+) (%S+)$')
know(a, tonumber(facts), tonumber(warn))
fold(a)
return shown(a)
