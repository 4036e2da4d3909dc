-- Show an account as it is now, changing nothing. KEYS: the account. ARGV: today, facts and warning level. Answers: its state, U for one that cannot be read, or
-- nothing.

local a, odd = read(KEYS[1])
if not a then return odd and 'U' end
a.today = ARGV[1]
know(a, string.match(ARGV[2], '^(%d+) (%S+)$'))
return fold(a)
