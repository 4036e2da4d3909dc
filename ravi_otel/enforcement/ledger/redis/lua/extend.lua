-- Hold more for an operation that goes on: of each kind as much as its fullest account has left, or nothing of any.
--
-- KEYS: the operations of its lease, then its accounts. ARGV: mode, its name among the operations, the number of this extension (a
-- message that comes again holds nothing twice), the day; then for each account its epoch, its facts, what is asked and of which kind.
--
-- Answers: E given, X refused, each with the account (0: none) that is only observed and would have stood in the way; O it is over.

local WRAPS_UP, ONLY_LOOK, OBSERVED = 8, 64, 512

local mode, name, number = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local wraps_up = is(mode, WRAPS_UP)
local accounts, crossings, given = {}, {}, {}

for at = 1, #KEYS - 1 do
  local first = 3 + at * 2
  local a, odd = open(KEYS[at + 1], ARGV[first], '', ARGV[4])
  if not a then return missing(at, odd) end
  local facts, more, kind, others, warn = string.match(ARGV[first + 1], '^(%d+) (%d+) (%d+) (%d+) (%S+)$')
  know(a, facts, warn)
  a.more, a.kind, a.others = tonumber(more), tonumber(kind), tonumber(others)
  accounts[at] = a
end

local record = redis.call('HGET', KEYS[1], name)
if not record then return answer('O', crossings, accounts) end
local letter, last, gave, rest = string.match(record, '^(%a) (%d+) ([%d,]*)|(.*)$')
if last == number then
  return redis.call('GET', KEYS[1] .. ':' .. name) or answer('E 0 ' .. gave, crossings, accounts)
end

local held = {}
for key, hold, back in string.gmatch(rest, '([^%s|;]+) (%d+) (%d+);') do
  held[#held + 1] = {key = key, hold = tonumber(hold), back = back}
end

local function filled(a, hold) return a.u + hold + kept_back(a, wraps_up) >= a.v end

local function note(head)
  local said = answer(head, crossings, accounts)
  return keep(KEYS[1] .. ':' .. name, crossings, said)
end

local function write_down(gives)
  local parts = {letter, ' ', number, ' ', gives, '|'}
  for at = 1, #held do parts[#parts + 1] = string.format('%s %.0f %s;', held[at].key, held[at].hold, held[at].back) end
  redis.call('HSET', KEYS[1], name, table.concat(parts))
end

local observed = is(mode, OBSERVED)
local tells = 0

local function refuse(at, hold)
  local a, reason = accounts[at], 'contended'
  if is(a.f, DRAINING) and is(a.facts, DRAINABLE) then
    reason = 'draining'
  elseif filled(a, hold) then
    reason = 'exhausted'
    if is(a.facts, DRAINABLE) then flag(a, DRAINING, true) end
    cross(a, at, crossings, true, hold)
  end
  if reason ~= 'contended' then
    a.x = a.x + 1
    a.dirty = true
  end
  return note(string.format('X %d %d %s %.0f %.0f', tells, at, reason, a.u, a.h))
end

for at = 1, #accounts do
  local a = accounts[at]
  if a.more > 0 then
    local hold = held[at].hold
    local left = a.v - a.u - a.h - kept_back(a, wraps_up) - a.others
    local closed = is(a.f, DRAINING) and is(a.facts, DRAINABLE) and not (wraps_up and kept_back(a, false) > 0)
    given[a.kind] = given[a.kind] or a.more
    if is(a.facts, OBSERVE) then
      if (left <= 0 or closed) and (is(a.f, DRAINING) or filled(a, hold)) then
        if not observed then
          observed, tells = true, at
          a.x = a.x + 1
          a.dirty = true
        end
        cross(a, at, crossings, true, hold)
      end
    elseif not is(a.facts, FREE) then
      if left <= 0 or closed then return refuse(at, hold) end
      given[a.kind] = math.min(given[a.kind], left)
    end
  end
end

local gives = {}
for at = 1, #accounts do
  local a = accounts[at]
  local more = a.more > 0 and given[a.kind] or 0
  gives[at] = text(more)
  if more > 0 and not is(mode, ONLY_LOOK) then
    a.h, held[at].hold = a.h + more, held[at].hold + more
    a.dirty = true
  end
end
gives = table.concat(gives, ',')
if not is(mode, ONLY_LOOK) then write_down(gives) end
return note(string.format('E %d %s', tells, gives))
