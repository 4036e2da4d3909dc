-- Write how much time has passed, and tell what that crossed; a clock never goes back.
--
-- KEYS: the account. ARGV: the day, and what `open` reads of it: ns passed, and "1" where a look past the limit is a refusal.
-- Answers: S done (1: past the limit), L lost, U unreadable.

local crossings, a, asks = {}, open(KEYS[1], ARGV[2], ARGV[1])
if not a then return missing(1, asks) end
local passed, refuses = match(asks, '^(%d+) (%d)$')
a[USED] = math.max(a[USED], tonumber(passed))
local over = a[USED] >= a[LIMIT]
if over and refuses == '1' then a[DENIED] = a[DENIED] + 1 end
a[DIRTY] = true
cross(a, 1, crossings, over, 0)
return answer(over and 'S 1' or 'S 0', crossings, {a})
