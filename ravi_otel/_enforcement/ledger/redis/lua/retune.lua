-- Set another limit on a living account; a higher one ends draining and arms its events again.
--
-- KEYS: the account. ARGV: epoch, birth, the time in s, the limit, facts and warning level. Answers: S done, L lost, U unreadable.

local a, odd = open(KEYS[1], ARGV[1], ARGV[2], tonumber(match(ARGV[3], '^%d+')), ARGV[3])
if not a then return missing(1, odd) end
local facts, warn = match(ARGV[5], '^(%d+) (%S+)$')
know(a, tonumber(facts), tonumber(warn))
local value = tonumber(ARGV[4])
if value > a[LIMIT] then a[FLAGS] = 0 end
a[LIMIT], a[DIRTY] = value, true
return answer('S', {}, {a})
