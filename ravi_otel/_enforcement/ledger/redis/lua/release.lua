-- Give back everything an operation holds, and what it was charged at once: nothing left this process.
--
-- The keys and arguments are those of operation.lua. Answers: S given back, O it is over.

local letter, held = take_out(KEYS[1], KEYS[2])
local accounts = {}
for at = 1, #KEYS - 2 do
  local a, hold = open(KEYS[at + 2], ARGV[at + 1], day), held and held[2 * at + 2]
  if a and hold then
    local back = held[2 * at + 3]
    if letter == 'P' then a[USED] = a[USED] - hold else a[HELD] = a[HELD] - hold end
    a[USED] = a[USED] - back
    a[DIRTY] = true
    if back > 0 and a[USED] < math.ceil(a[LIMIT] * a[WARN]) then flag(a, DRAINING, false) end
  end
  accounts[at] = a or false
end
return answer(letter and 'S' or 'O', {}, accounts)
