-- Hold or charge everything an operation needs, in all of its accounts or in none.
--
-- KEYS: the operations of this lease, the operation's tombstone, the leases, then the accounts, root to leaf. ARGV: first mode, the
-- operation's name, its bit in the tombstones ("-": it has a key of its own), the lease, for how many milliseconds it is to be made (0:
-- it is there), the day, a ticket for the line ("-": none), and the number of the account in whose line it stands (0: in none); then what
-- `open` reads of each account, which asks what is wanted and the least of it; and, where one of them is not 0, what is set aside for
-- others, what for the asker, and what the program's own hand has used.
--
-- Answers: G granted, with the account that is only observed and would have refused (0: none), and what is held, unless that is all that
-- was wanted; O it is over; D denied, by which account, why, and what is used and held of it; L lost, U unreadable; N no lease any more.

local NEWCOMER, PATIENT, SPENT, WRAPS_UP, SURE, SLOT, STAND, LAST_TRY = 1, 2, 4, 8, 16, 32, 128, 256
local STALE_MS, LINE_S, WEEK = 2000, 3600, 604800

local operations, tombstone, leases = KEYS[1], KEYS[2], KEYS[3]
local mode, name, buried_at, lease, made_ms, day, ticket, stands_at =
  match(ARGV[1], '^(%d+) (%S+) (%S+) (%S+) (%d+) (%S+) (%S+) (%d+)$')
mode, stands_at = mode + 0, stands_at + 0
local wraps_up = mode % (2 * WRAPS_UP) >= WRAPS_UP
local accounts, crossings, over_limit, observed = {}, {}, {}, 0

local function now_ms()
  local now = call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

-- the request

if made_ms ~= '0' then
  call('ZADD', leases, 'NX', now_ms() + tonumber(made_ms), lease)
  call('HSET', operations, '@', '1')
  call('EXPIRE', operations, WEEK)
elseif not call('ZSCORE', leases, lease) then
  return 'N'
end

local plain = stands_at == 0
for at = 1, #KEYS - 3 do
  local a, asks = open(KEYS[at + 3], ARGV[at + 1], day)
  if not a then return missing(at, asks) end
  local want, least, more = match(asks, '^(%d+) (%d+)(.*)$')
  want, least = want + 0, least + 0
  local kept = a[FACTS] % (2 * ONE) >= TENTH and kept_back(a, wraps_up) or 0
  a[WANT], a[LEAST], a[KEPT] = want, least, kept
  if more ~= '' then
    local others, mine, by_hand = match(more, '^ (%d+) (%d+) (%d+)$')
    a[OTHERS], a[MINE], by_hand = tonumber(others), tonumber(mine), tonumber(by_hand)
    if by_hand ~= 0 then a[USED], a[DIRTY] = a[USED] + by_hand, true end
  end
  -- Where all is there that is wanted, nobody waits, and nothing drains, none of the reasons below is one.
  local room = a[LIMIT] - a[USED] - a[HELD] - kept - a[OTHERS]
  plain = plain and room > 0 and room >= want and room >= least and a[WAITING] == 0 and a[FLAGS] < DRAINING
  accounts[at] = a
end

if buried_at ~= '-' then
  if call('GETBIT', tombstone, buried_at) == 1 then return answer('O', crossings, accounts) end
end
local record = call('HGET', operations, name)
if record then
  local told = call('GET', operations .. ':' .. name)
  if told then return told end
  local held, holds = parts(record), {}
  for at = 1, #accounts do holds[at] = format('%.0f', held[2 * at + 2] or 0) end
  return answer('G 0 ' .. concat(holds, ','), crossings, accounts)
end
if buried_at == '-' and call('EXISTS', tombstone) == 1 then return answer('O', crossings, accounts) end

-- What is made at each call costs at each call: all of this is made where it is needed.
if not plain then
  local newcomer, patient = mode % (2 * NEWCOMER) >= NEWCOMER, mode % (2 * PATIENT) >= PATIENT
  local function process_of(one) return match(one, '^(.*)/') end
  local function is(a, fact) return a[FACTS] % (2 * fact) >= fact end

  -- the line

  local function count_line(a)
    local waiting = math.min(call('ZCARD', a[KEY] .. ':l'), MOST_WAITING)
    if waiting ~= a[WAITING] then a[WAITING], a[DIRTY] = waiting, true end
  end

  -- Show who is first in line; whoever comes from a process that is silent drops out.
  local function first_in_line(a, at_ms)
    while true do
      local first = call('ZRANGE', a[KEY] .. ':l', 0, 0)[1]
      local seen = first and call('HGET', a[KEY] .. ':s', process_of(first))
      if not first or (seen and at_ms - tonumber(seen) <= STALE_MS) then
        count_line(a)
        return first
      end
      call('ZREM', a[KEY] .. ':l', first)
    end
  end

  local function leave_line(a)
    if a and call('ZREM', a[KEY] .. ':l', ticket) == 1 then count_line(a) end
  end

  local function join_line(a, at_ms)
    call('ZADD', a[KEY] .. ':l', 'NX', call('HINCRBY', a[KEY], 'q', 1), ticket)
    call('HSET', a[KEY] .. ':s', process_of(ticket), at_ms)
    call('EXPIRE', a[KEY] .. ':l', LINE_S)
    call('EXPIRE', a[KEY] .. ':s', LINE_S)
    count_line(a)
  end

  -- one line of the request: the arithmetic of judge.py

  local function left(a) return a[LIMIT] - a[USED] - a[HELD] - a[KEPT] - a[OTHERS] end

  local function least(a)
    if not patient or a[CARVED] then return a[LEAST] end
    local enough = mode % (2 * SURE) >= SURE and a[WANT] or math.floor((a[WANT] + a[LEAST]) / 2)
    return math.max(a[LEAST], math.min(enough, a[LIMIT] - a[USED] - a[KEPT] - a[OTHERS]))
  end

  local function over(a)
    local used = a[USED] + a[KEPT]
    if a[NATURE] == BY_HOLD or a[CARVED] then return used + a[LEAST] > a[LIMIT] end
    if a[NATURE] == BY_COUNT then return used + a[WANT] > a[LIMIT] end
    if a[NATURE] == AFTER then return used >= a[LIMIT] end
    return a[WANT] > a[LIMIT]
  end

  local function stands_behind(a)
    local needs = least(a)
    if left(a) < needs then return true end
    if not (newcomer and patient and a[WAITING] > 0) then return false end
    if not first_in_line(a, now_ms()) then return false end
    return not is(a, CLAIMED) or a[MINE] < needs
  end

  local function refusal(a)
    if a[FLAGS] % (2 * DRAINING) >= DRAINING and not (wraps_up and kept_back(a, false) > 0) then return 'draining' end
    if over(a) then return 'exhausted' end
    local contends
    if a[NATURE] == BY_COUNT and not a[CARVED] then
      contends = (a[HELD] > 0 or is(a, CLAIMED)) and left(a) < a[WANT]
    elseif a[NATURE] ~= BY_HOLD and not a[CARVED] then
      contends = is(a, CLAIMED) and left(a) <= 0
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
      a[DENIED], a[DIRTY] = a[DENIED] + 1, true
    end
    if reason == 'exhausted' then
      local alone = is(a, CLAIMED) or is(a, SHARED) or a[USED] < math.ceil(a[LIMIT] * a[WARN])
      if a[USED] < a[LIMIT] - kept_back(a, false) and alone then
        reason = 'too_large'
      else
        flag(a, DRAINING, is(a, DRAINABLE))
        cross(a, at, crossings, true, 0)
      end
    end
    local said = answer(format('D %d %s %.0f,%.0f', at, reason, a[USED], a[HELD]), crossings, accounts)
    return keep(operations .. ':', name, crossings, said)
  end

  local waits_at = stands_at > 0 and accounts[stands_at] or nil
  if waits_at and mode % (2 * LAST_TRY) >= LAST_TRY then
    leave_line(waits_at)
    waits_at = nil
  elseif waits_at then
    local at_ms = now_ms()
    call('HSET', waits_at[KEY] .. ':s', process_of(ticket), at_ms)
    if not call('ZSCORE', waits_at[KEY] .. ':l', ticket) then
      join_line(waits_at, at_ms)  -- thought dead: it stands behind all others now
    end
    local first = first_in_line(waits_at, at_ms)  -- which of its own comes first is the process's business
    if first and process_of(first) ~= process_of(ticket) and not is(waits_at, CLAIMED) then return deny(stands_at, 'contended') end
  end

  if mode % (2 * SPENT) < SPENT then
    for at = 1, #accounts do
      local a = accounts[at]
      local reason = not is(a, FREE) and refusal(a) or nil
      if reason and is(a, OBSERVES) then
        if reason ~= 'contended' and observed == 0 then observed = at end
      elseif reason then
        if reason ~= 'contended' then
          leave_line(waits_at)
        elseif mode % (2 * STAND) >= STAND and at ~= stands_at then
          leave_line(waits_at)
          join_line(a, now_ms())
        end
        return deny(at, reason)
      end
    end
  end
  leave_line(waits_at)
  for at = 1, #accounts do
    local a = accounts[at]
    local room = left(a)
    over_limit[at] = is(a, OBSERVES) and over(a)
    if (a[NATURE] == BY_HOLD or a[CARVED]) and a[WANT] > room and not is(a, OBSERVES) and not is(a, FREE) then
      a[WANT] = math.max(0, room)
    end
  end
end

-- It is admitted.
record = {mode % (2 * SLOT) >= SLOT and 'S' or 'L', #accounts, 0, 0, 0, 0, 0, 0, 0, 0, 0}
for at = 1, #accounts do
  local a, hold, back = accounts[at], 0, 0
  local nature, want = a[NATURE], a[WANT]
  if nature == BY_HOLD or a[CARVED] then
    a[HELD], hold = a[HELD] + want, want
  elseif nature == BY_COUNT then
    a[USED], back = a[USED] + want, want
  elseif nature == BY_LEVEL then
    a[USED] = want
  end
  a[DIRTY] = true
  cross(a, at, crossings, over_limit[at], 0)
  if observed == at then a[DENIED] = a[DENIED] + 1 end
  record[2 * at + 2], record[2 * at + 3] = hold, back
end
call('HSET', operations, name, pack(shape(#accounts), unpack(record)) .. concat(KEYS, ' ', 4))
if buried_at == '-' then call('SET', tombstone, 'held', 'EX', WEEK) end
local said = 'G ' .. observed
if not plain then
  local holds = {}
  for at = 1, #accounts do holds[at] = format('%.0f', record[2 * at + 2]) end
  said = said .. ' ' .. concat(holds, ',')
end
return keep(operations .. ':', name, crossings, answer(said, crossings, accounts))
