-- What the ends of an operation have in common.
--
-- KEYS: the operations of the lease it was reserved under, its tombstone, then its accounts in their order. ARGV: its name among the
-- operations, its bit in the tombstones ('' where it has a key of its own). A record is a letter (L: it lives, S: so does a slot, P: it
-- was settled at its grant because its process went silent, R: it was given back for the same reason), what it was extended by last,
-- and for each account its key, what is held, and what a release gives back of what was charged at once.

local WEEK = 604800

local function parts(record)
  local found = {}
  for key, hold, back in string.gmatch(string.sub(record, string.find(record, '|', 1, true) + 1), '(%S+) (%d+) (%d+);') do
    found[#found + 1] = {key = key, hold = tonumber(hold), back = tonumber(back)}
  end
  return found
end

local function bury(name, tombstone, at)
  if at == '' then
    call('SET', tombstone, 'over', 'EX', WEEK)
  else
    call('SETBIT', tombstone, at, 1)
    call('EXPIRE', tombstone, WEEK)
  end
end

-- Take an operation out: its letter and its parts, nil when it is over or was never there. Nothing of it can come later.
local function take_out(operations, tombstone, name, at)
  local record = call('HGET', operations, name)
  if record then
    call('HDEL', operations, name)
  else
    record = call('HGET', operations .. ':p', name)
    if record then call('HDEL', operations .. ':p', name) end
  end
  bury(name, tombstone, at)
  if not record then return nil end
  local letter = string.sub(record, 1, 1)
  if letter == 'R' then return nil end
  return letter, parts(record)
end
