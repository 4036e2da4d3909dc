-- What the ends of an operation have in common.
--
-- KEYS: the operations of the lease it was reserved under, its tombstone, then its accounts in their order. ARGV: first its name among the
-- operations, its bit in the tombstones ("-": it has a key of its own), and the day; then what `open` reads of each account.

local WEEK, WEEK_AND_DAY = 604800, 691200

local name, buried_at, day = match(ARGV[1], '^(%S+) (%S+) (%S+)$')

-- Take an operation out: its letter and its parts, nil when it is over or was never there. Nothing of it can come later.
local function take_out(operations, tombstone)
  local record = call('HGET', operations, name)
  if record then
    call('HDEL', operations, name)
  else
    record = call('HGET', operations .. ':p', name)
    if record then call('HDEL', operations .. ':p', name) end
  end
  if buried_at == '-' then
    call('SET', tombstone, 'over', 'EX', WEEK)
  else
    call('SETBIT', tombstone, buried_at, 1)
    if call('TTL', tombstone) < WEEK then call('EXPIRE', tombstone, WEEK_AND_DAY) end  -- once a day: to ask takes half the time
  end
  if not record or byte(record) == 82 then return nil end  -- an R
  local held, keys = parts(record)
  if keys ~= concat(KEYS, ' ', 3) then return sub(record, 1, 1), {} end
  return held[1], held
end
