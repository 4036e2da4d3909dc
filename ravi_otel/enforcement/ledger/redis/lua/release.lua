-- Give back everything an operation holds, and what it was charged at once: nothing left this process.
--
-- After the keys and arguments of operation.lua: the day; then for each account its epoch and facts. Answers: S given back, O it is over.

local letter, held = take_out(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
local said = {letter and 'S' or 'O', ''}
for at = 1, #KEYS - 2 do
  local given = 2 + at * 2
  local a, part = open(KEYS[at + 2], ARGV[given], '', ARGV[3]), held and held[at]
  if a and part and part.key == a.key then
    local facts, warn = string.match(ARGV[given + 1], '^(%d+) (%S+)')
    know(a, facts, warn)
    if letter == 'P' then a.u = a.u - part.hold else a.h = a.h - part.hold end
    a.u = a.u - part.back
    a.dirty = true
    if part.back > 0 and a.u < warn_value(a) then flag(a, DRAINING, false) end
  end
  if a and a.dirty then write(a) end
  said[#said + 1] = a and a.s or ''
end
return table.concat(said, ';')
