-- Show accounts as they are now, changing nothing. KEYS: the accounts. ARGV: the day, and of each its epoch, facts and warning level.
-- Answers of each its state, U for one that cannot be read, or an empty word for none.

local said = {}
for at = 1, #KEYS do
  local a, odd = read(KEYS[at])
  if a then
    local facts, warn = match(ARGV[at + 1], ' (%d+) (%S+)')
    know(a, facts + 0, warn + 0, ARGV[1])
    fold(a)
    said[at] = shown(a)
  else
    said[at] = odd and 'U' or ''
  end
end
return said
