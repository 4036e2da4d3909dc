-- Hold or charge everything an operation needs, in all of its accounts or in none.
--
-- KEYS: the operations of this lease, the operation's tombstone, the leases, then the accounts, root to leaf. ARGV: mode, the
-- operation's name, its bit in the tombstones, the lease, for how many milliseconds it is to be made ('' where it is there), the day, a
-- ticket for the line, the number of the account in whose line it stands (0: in none); then for each account its epoch, its facts, and
-- its birth.
--
-- Answers: G granted, O it is over, D denied, L lost, U unreadable, N no lease any more.

local NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, ONLY_LOOK, STAND, LAST = 1, 2, 4, 8, 16, 32, 64, 128, 256
local STALE_MS, LINE_S = 2000, 3600

local operations, tombstone, leases = KEYS[1], KEYS[2], KEYS[3]
local mode, name, buried_at, lease = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local day, ticket, stands_at = ARGV[6], ARGV[7], tonumber(ARGV[8])
local newcomer, patient, wraps_up = is(mode, NEWCOMER), is(mode, PATIENT), is(mode, WRAPS_UP)
local accounts, crossings = {}, {}
local function process_of(one) return string.match(one, '^(.*)/') end

local function now_ms()
  local now = call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- the line

-- What is made at each call costs at each call: these are made where somebody stands.
local function in_line()
  local function count_line(a)
    local waiting = call('ZCARD', a.key .. ':l')
    if waiting ~= tonumber(a.w) then
      a.w = waiting
      a.dirty = true
    end
  end

  -- Show who is first in line; whoever comes from a process that is silent drops out.
  local function first_in_line(a, now)
    while true do
      local first = call('ZRANGE', a.key .. ':l', 0, 0)[1]
      local seen = first and call('HGET', a.key .. ':s', process_of(first))
      if not first or (seen and now - tonumber(seen) <= STALE_MS) then
        count_line(a)
        return first
      end
      call('ZREM', a.key .. ':l', first)
    end
  end

  local function leave_line(a)
    if call('ZREM', a.key .. ':l', ticket) == 1 then count_line(a) end
  end

  local function join_line(a, now)
    call('ZADD', a.key .. ':l', 'NX', call('HINCRBY', a.key, 'q', 1), ticket)
    call('HSET', a.key .. ':s', process_of(ticket), now)
    call('EXPIRE', a.key .. ':l', LINE_S)
    call('EXPIRE', a.key .. ':s', LINE_S)
    count_line(a)
  end

  return {first = first_in_line, leave = leave_line, join = join_line}
end

-- one line of the request: the arithmetic of judging.py

local function left(a) return a.v - a.u - a.h - kept_back(a, wraps_up) - a.others end

local function least(a)
  if not patient or a.carved then return a.minimum end
  local enough = is(mode, SURE) and a.want or math.floor((a.want + a.minimum) / 2)
  return math.max(a.minimum, math.min(enough, a.v - a.u - kept_back(a, wraps_up) - a.others))
end

local function over(a)
  local kept = kept_back(a, wraps_up)
  if a.nature == HELD or a.carved then return a.u + kept + a.minimum > a.v end
  if a.nature == COUNTED then return a.u + kept + a.want > a.v end
  if a.nature == AFTER then return a.u + kept >= a.v end
  return a.want > a.v
end

local function stands_behind(a)
  local needs = least(a)
  if left(a) < needs then return true end
  if not (newcomer and patient and tonumber(a.w) > 0) then return false end
  if not in_line().first(a, now_ms()) then return false end
  return not is(a.facts, CLAIMED) or a.mine < needs
end

local function refusal(a)
  if is(a.f, DRAINING) and not (wraps_up and kept_back(a, false) > 0) then return 'draining' end
  if over(a) then return 'exhausted' end
  local contends
  if a.nature == COUNTED and not a.carved then
    contends = (a.h > 0 or is(a.facts, CLAIMED)) and left(a) < a.want
  elseif a.nature ~= HELD and not a.carved then
    contends = is(a.facts, CLAIMED) and left(a) <= 0
  else
    contends = stands_behind(a)
  end
  return contends and 'contended' or nil
end

local function deny(at, reason)
  local a = accounts[at]
  if reason ~= 'contended' then
    local told = call('GET', operations .. ':' .. name)
    if told then return told end
    a.x = a.x + 1
    a.dirty = true
  end
  if reason == 'exhausted' then
    local alone = is(a.facts, CLAIMED) or is(a.facts, SHARED) or a.u < warn_value(a)
    if a.u < a.v - kept_back(a, false) and alone then
      reason = 'too_large'
    else
      flag(a, DRAINING, is(a.facts, DRAINABLE))
      cross(a, at, crossings, true, 0)
    end
  end
  local said = answer(string.format('D %d %s %.0f %.0f', at, reason, a.u, a.h), crossings, accounts)
  return keep(operations .. ':' .. name, crossings, said)
end

local function hold(a)
  if a.nature ~= HELD and not a.carved then return 0 end
  local room = left(a)
  if a.want <= room or is(a.facts, OBSERVE) or is(a.facts, FREE) then return a.want end
  return math.max(0, room)
end

local function admit(observed)
  local holds, record = {}, {is(mode, SLOT) and 'S' or 'L', ' 0 |'}
  for at = 1, #accounts do holds[at] = hold(accounts[at]) end
  for at = 1, #accounts do
    local a, back = accounts[at], 0
    local denied = is(a.facts, OBSERVE) and over(a)
    if a.nature == COUNTED and not a.carved then
      a.u, back = a.u + a.want, a.want
    elseif a.nature == LEVEL and not a.carved then
      a.u = a.want
    else
      a.h = a.h + holds[at]
    end
    a.dirty = true
    cross(a, at, crossings, denied, 0)
    if observed == at then a.x = a.x + 1 end
    record[at + 2] = format(PART, a.key, holds[at], back)
    holds[at] = text(holds[at])
  end
  call('HSET', operations, name, table.concat(record))
  if buried_at == '' then call('SET', tombstone, 'held', 'EX', 604800) end
  local said = answer(string.format('G %d %s', observed, table.concat(holds, ',')), crossings, accounts)
  return keep(operations .. ':' .. name, crossings, said)
end

-- the request

if ARGV[5] ~= '' then
  call('ZADD', leases, 'NX', now_ms() + tonumber(ARGV[5]), lease)
  call('HSET', operations, '@', '1')
  call('EXPIRE', operations, 604800)
elseif not call('ZSCORE', leases, lease) then
  return 'N'
end

for at = 1, #KEYS - 3 do
  local given = 6 + at * 3
  local a, odd = open(KEYS[at + 3], ARGV[given], ARGV[given + 2], day)
  if not a then return missing(at, odd) end
  local facts, want, minimum, others, mine, by_hand, warn =
    match(ARGV[given + 1], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)$')
  know(a, facts, warn)
  a.want, a.minimum, a.others, a.mine = tonumber(want), tonumber(minimum), tonumber(others), tonumber(mine)
  if by_hand ~= '0' then
    a.u = a.u + tonumber(by_hand)
    a.dirty = true
  end
  accounts[at] = a
end

if buried_at ~= '' then
  if call('GETBIT', tombstone, buried_at) == 1 then return answer('O', crossings, accounts) end
end
local record = call('HGET', operations, name)
if record then
  local told = call('GET', operations .. ':' .. name)
  if told then return told end
  local holds = {}
  for held in string.gmatch(record, '%S+ (%d+) %d+;') do holds[#holds + 1] = held end
  return answer('G 0 ' .. table.concat(holds, ','), crossings, accounts)
end
if buried_at == '' and call('EXISTS', tombstone) == 1 then return answer('O', crossings, accounts) end

local waits_at = stands_at > 0 and accounts[stands_at] or nil
if waits_at and is(mode, LAST) then
  in_line().leave(waits_at)
  waits_at = nil
elseif waits_at then
  local now = now_ms()
  call('HSET', waits_at.key .. ':s', process_of(ticket), now)
  if not call('ZSCORE', waits_at.key .. ':l', ticket) then
    in_line().join(waits_at, now)  -- thought dead: it stands behind all others now
  end
  local first = in_line().first(waits_at, now)  -- which of its own comes first is the process's business
  if first and process_of(first) ~= process_of(ticket) and not is(waits_at.facts, CLAIMED) then return deny(stands_at, 'contended') end
end

local observed = 0
if not is(mode, SPENT) then
  for at = 1, #accounts do
    local a = accounts[at]
    local reason = not is(a.facts, FREE) and refusal(a) or nil
    if reason and is(a.facts, OBSERVE) then
      if reason ~= 'contended' and observed == 0 then observed = at end
    elseif reason then
      if reason ~= 'contended' then
        if waits_at then in_line().leave(waits_at) end
      elseif is(mode, STAND) and at ~= stands_at then
        if waits_at then in_line().leave(waits_at) end
        in_line().join(a, now_ms())
      end
      return deny(at, reason)
    end
  end
end
if waits_at then in_line().leave(waits_at) end
if is(mode, ONLY_LOOK) then return answer('G 0 ', crossings, accounts) end
return admit(observed)
