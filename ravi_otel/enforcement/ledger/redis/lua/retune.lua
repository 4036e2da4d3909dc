-- Set another limit on a living account; a higher one ends draining and arms its events again.
--
-- KEYS: the account. ARGV: epoch, birth, the time in s, the limit, facts and warning level. Answers: S done, L lost, U unreadable.

local a, odd = open(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if not a then return missing(1, odd) end
know(a, string.match(ARGV[5], '^(%d+) (%S+)$'))
local value = tonumber(ARGV[4])
if value > a.v then a.f = 0 end
a.v = value
a.dirty = true
return answer('S', {}, {a})
