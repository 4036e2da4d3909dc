-- Replace what an operation holds by what it used.
--
-- The keys and arguments are those of operation.lua: of each account it is asked what was used of its kind ("-": nobody knows), and whether
-- that is our own count of what could be seen.
--
-- Answers: S settled, O it is over.

local accounts, crossings = {}, {}
for at = 1, #KEYS - 2 do
  local a, asks = open(KEYS[at + 2], ARGV[at + 1], day)
  if a then
    local told, guessed = match(asks, '^(%S+) (%d)$')
    a[WANT], a[MINE] = tonumber(told) or false, guessed == '1'
  end
  accounts[at] = a or false
end

local letter, held = take_out(KEYS[1], KEYS[2])
if not letter then return call('GET', KEYS[1] .. ':=' .. name) or answer('O', crossings, accounts) end

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
return keep(KEYS[1] .. ':=', name, crossings, answer('S', crossings, accounts))
