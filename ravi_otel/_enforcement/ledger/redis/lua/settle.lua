-- Replace what an operation holds by what it used.
--
-- After the keys and arguments of operation.lua: for each account its epoch and facts, what was used of its kind ('' where nobody knows)
-- and whether that is our own count of what could be seen.
--
-- Answers: S settled, O it is over.

local accounts, crossings, now = {}, {}, tonumber(match(ARGV[3], '^%d+'))
for at = 1, #KEYS - 2 do
  local given = 2 + at * 2
  local a = open(KEYS[at + 2], ARGV[given], '', now, ARGV[3])
  if a then
    local facts, warn, told, guessed = match(ARGV[given + 1], '^(%d+) (%S+) (%d*) (%d)$')
    know(a, facts + 0, warn + 0)
    a[WANT], a[MINE] = told ~= '' and told + 0, guessed == '1'
  end
  accounts[at] = a or false
end

local letter, held = take_out(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
if not letter then return call('GET', KEYS[1] .. ':=' .. ARGV[1]) or answer('O', crossings, accounts) end

for at = 1, #accounts do
  local a, hold = accounts[at], held[2 * at + 2]
  if a and hold then
    local nature, told = a[NATURE], a[WANT]
    if nature == BY_HOLD or a[CARVED] then
      if letter == 'P' then a[HELD], a[USED] = a[HELD] + hold, a[USED] - hold end
      local used = (not told or (a[MINE] and told < hold)) and hold or told
      a[HELD], a[USED] = a[HELD] - hold, a[USED] + used
    elseif nature == BY_LEVEL then
      a[USED] = told or a[USED]
    elseif nature ~= BY_COUNT then
      a[USED] = a[USED] + (told or 0)
    end
    if nature ~= BY_COUNT or a[CARVED] then
      a[USED] = math.max(0, math.min(a[USED], TOP))
      a[DIRTY] = true
      cross(a, at, crossings, false, 0)
    end
  end
end
return keep(KEYS[1] .. ':=', ARGV[1], crossings, answer('S', crossings, accounts))
