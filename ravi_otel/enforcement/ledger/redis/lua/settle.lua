-- Replace what an operation holds by what it used.
--
-- After the keys and arguments of operation.lua: the day; then for each account its epoch and facts, what was used of its kind ('' where
-- nobody knows) and whether that is our own count of what could be seen.
--
-- Answers: S settled, O it is over.

local accounts, crossings = {}, {}
for at = 1, #KEYS - 2 do
  local given = 2 + at * 2
  local a = open(KEYS[at + 2], ARGV[given], '', ARGV[3])
  if a then
    local facts, warn, told, guessed = match(ARGV[given + 1], '^(%d+) (%S+) (%d*) (%d)$')
    know(a, facts, warn)
    a.told_used, a.guessed = tonumber(told), guessed == '1'
  end
  accounts[at] = a or false
end

local function states(head)
  local said = {head, table.concat(crossings, ',')}
  for at = 1, #accounts do
    local a = accounts[at]
    if a and a.dirty then write(a) end
    said[#said + 1] = a and a.s or ''
  end
  return table.concat(said, ';')
end

local letter, held = take_out(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
if not letter then return call('GET', KEYS[1] .. ':=' .. ARGV[1]) or states('O') end

for at = 1, #accounts do
  local a, part = accounts[at], held[at]
  if a and part and part.key == a.key then
    local hold, told = part.hold, a.told_used
    if a.nature == HELD or a.carved then
      if letter == 'P' then a.h, a.u = a.h + hold, a.u - hold end
      local used = (not told or (a.guessed and told < hold)) and hold or told
      a.h, a.u = a.h - hold, a.u + used
    elseif a.nature == LEVEL then
      a.u = told or a.u
    elseif a.nature ~= COUNTED then
      a.u = a.u + (told or 0)
    end
    if a.nature ~= COUNTED or a.carved then
      a.u = math.max(0, math.min(a.u, TOP))
      a.dirty = true
      cross(a, at, crossings, false, 0)
    end
  end
end
return keep(KEYS[1] .. ':=' .. ARGV[1], crossings, states('S'))
