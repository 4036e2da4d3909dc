-- Hold more for an operation that goes on: of each kind as much as its fullest account has left, or nothing of any.
--
-- KEYS: the operations of its lease, then its accounts. ARGV: first mode, its name among the operations, the number of this extension (a
-- message that comes again holds nothing twice), and the day; then what `open` reads of each account, which asks how much more, of which
-- kind, and says what is set aside for others.
--
-- Answers: E given, with the account (0: none) that is only observed and would have stood in the way, and how much of each; X refused, by
-- which account, why, what is used and held of it, and the one that is only observed; O it is over; L lost, U unreadable.

local WRAPS_UP, OBSERVED = 8, 512

local mode, name, number, day = match(ARGV[1], '^(%d+) (%S+) (%d+) (%S+)$')
mode, number = mode + 0, number + 0
local wraps_up = mode % (2 * WRAPS_UP) >= WRAPS_UP
local accounts, crossings, given, kinds = {}, {}, {}, {}

for at = 1, #KEYS - 1 do
  local a, asks = open(KEYS[at + 1], ARGV[at + 1], day)
  if not a then return missing(at, asks) end
  local more, kind, others = match(asks, '^(%d+) (%d+) (%d+)$')
  a[WANT], a[OTHERS], a[KEPT], kinds[at] = tonumber(more), tonumber(others), kept_back(a, wraps_up), kind
  accounts[at] = a
end

local record = call('HGET', KEYS[1], name)
if not record then return answer('O', crossings, accounts) end
local held, keys = parts(record)
if keys ~= concat(KEYS, ' ', 2) then return answer('O', crossings, accounts) end

local function gave(amounts)
  local said = {}
  for at = 1, #accounts do said[at] = format('%.0f', amounts[at]) end
  return concat(said, ',')
end

if held[3] == number then
  local amounts = {}
  for at = 1, #accounts do amounts[at] = held[2 * #accounts + 3 + at] end
  return call('GET', KEYS[1] .. ':' .. name) or answer('E 0 ' .. gave(amounts), crossings, accounts)
end

local function is(a, fact) return a[FACTS] % (2 * fact) >= fact end
local function filled(a, hold) return a[USED] + hold + a[KEPT] >= a[LIMIT] end

local function note(head)
  local said = answer(head, crossings, accounts)
  return keep(KEYS[1] .. ':', name, crossings, said)
end

local observed = mode % (2 * OBSERVED) >= OBSERVED
local tells = 0

local function refuse(at, hold)
  local a, reason = accounts[at], 'contended'
  if a[FLAGS] % (2 * DRAINING) >= DRAINING and is(a, DRAINABLE) then
    reason = 'draining'
  elseif filled(a, hold) then
    reason = 'exhausted'
    if is(a, DRAINABLE) then flag(a, DRAINING, true) end
    cross(a, at, crossings, true, hold)
  end
  if reason ~= 'contended' then a[DENIED], a[DIRTY] = a[DENIED] + 1, true end
  return note(format('X %d %s %.0f,%.0f,%d', at, reason, a[USED], a[HELD], tells))
end

for at = 1, #accounts do
  local a, hold, kind = accounts[at], held[2 * at + 2], kinds[at]
  if a[WANT] > 0 then
    local left = a[LIMIT] - a[USED] - a[HELD] - a[KEPT] - a[OTHERS]
    local draining = a[FLAGS] % (2 * DRAINING) >= DRAINING
    local closed = draining and is(a, DRAINABLE)
    given[kind] = given[kind] or a[WANT]
    if is(a, OBSERVES) then
      if (left <= 0 or closed) and (draining or filled(a, hold)) then
        if not observed then
          observed, tells = true, at
          a[DENIED], a[DIRTY] = a[DENIED] + 1, true
        end
        cross(a, at, crossings, true, hold)
      end
    elseif not is(a, FREE) then
      if left <= 0 or closed then return refuse(at, hold) end
      given[kind] = math.min(given[kind], left)
    end
  end
end

local gives, after = {}, {sub(record, 1, 1), #accounts, number}
for at = 1, #accounts do
  local a, hold = accounts[at], held[2 * at + 2]
  gives[at] = a[WANT] > 0 and given[kinds[at]] or 0
  if gives[at] > 0 then a[HELD], a[DIRTY] = a[HELD] + gives[at], true end
  after[2 * at + 2], after[2 * at + 3] = hold + gives[at], held[2 * at + 3]
end
for at = 1, #accounts do after[#after + 1] = gives[at] end
call('HSET', KEYS[1], name, pack(shape(#accounts, true), unpack(after)) .. keys)
return note(format('E %d %s', tells, gave(gives)))
