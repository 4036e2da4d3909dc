-- Show accounts as they are now, changing nothing. KEYS: the accounts. ARGV: the time, and of each its facts and warning level. Answers of
-- each its state, U for one that cannot be read, or an empty word for none.

local said = {}
for at = 1, #KEYS do
  local a, odd = read(KEYS[at])
  if a then
    a[TODAY] = ARGV[1]
    local facts, warn = match(ARGV[at + 1], '^(%d+) (%S+)$')
    know(a, tonumber(facts), tonumber(warn))
    fold(a)
    said[at] = shown(a)
  else
    said[at] = odd and 'U' or ''
  end
end
return said
