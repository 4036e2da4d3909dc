-- Set another limit on a living account; a higher one ends draining and arms its events again.
--
-- KEYS: the account. ARGV: the day, and what `open` reads of it, which asks for the limit. Answers: S done, L lost, U unreadable.

local a, asks = open(KEYS[1], ARGV[2], ARGV[1])
if not a then return missing(1, asks) end
local value = tonumber(asks)
if value > a[LIMIT] then a[FLAGS] = 0 end
a[LIMIT], a[DIRTY] = value, true
return answer('S', {}, {a})
