-- Write how much time has passed, and tell what that crossed; a clock never goes back.
--
-- KEYS: the account. ARGV: epoch, birth, the time in s, facts and warning level, ns passed, "1" where a look past it is a refusal.
-- Answers: S done, L lost, U unreadable.

local crossings, a, odd = {}, open(KEYS[1], ARGV[1], ARGV[2], tonumber(match(ARGV[3], '^%d+')), ARGV[3])
if not a then return missing(1, odd) end
local facts, warn = match(ARGV[4], '^(%d+) (%S+)$')
know(a, tonumber(facts), tonumber(warn))
a[USED] = math.max(a[USED], tonumber(ARGV[5]))
local over = a[USED] >= a[LIMIT]
if over and ARGV[6] == '1' then a[DENIED] = a[DENIED] + 1 end
a[DIRTY] = true
cross(a, 1, crossings, over, 0)
return answer(over and 'S 1' or 'S 0', crossings, {a})
