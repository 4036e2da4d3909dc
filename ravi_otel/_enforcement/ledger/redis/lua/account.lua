-- What every step does with an account; each script begins with this.
--
-- An account is a hash. `s` is what changes: the format's version, epoch, limit, used, held, denied, revision, when it was last used
-- (seconds since 1970), how many stand in line, flags, and how many events were told, packed as HEAD says; behind that a letter for each
-- event ("n" nearing, "x" exceeded), and behind those what a later version writes, which is kept as it is. `n` is its key in words, `d`
-- the smallest limit that was declared, `t` for how many seconds it is kept after its last use. Amounts are doubles: whole, never
-- negative, 2^53 at most.
-- The epoch of an account whose window rolls begins with "r", of any other with "e": the first has `i`, how many ns a part of the window
-- lasts, and `b`, what account.py writes of it.
--
-- A local whose name is in capitals and whose value is a number is a constant: messages.py puts the number in its place. An account is a
-- list, since that is made in a third of the time; these are the places in it. `x % (2 * FLAG) >= FLAG` tells whether a flag is set.

local KEY, STATE, DIRTY, ROLLING, FACTS, WARN, NATURE, CARVED, KEPT = 1, 2, 3, 4, 5, 6, 7, 8, 9
local WANT, LEAST, OTHERS, MINE = 10, 11, 12, 13
local VERSION, EPOCH, LIMIT, USED, HELD, DENIED, REVISION, LAST, WAITING, FLAGS, EVENTS = 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24

local TOP = 9007199254740992
local FORMAT, HEAD_BYTES, MOST_WAITING, MOST_EVENTS = 2, 63, 65535, 1000
local BY_COUNT, BY_HOLD, AFTER, BY_LEVEL = 0, 1, 2, 3
local OBSERVES, DRAINABLE, SHARED, TENTH, ONE, FREE, CARVES, CLAIMED = 8, 16, 32, 64, 128, 256, 512, 1024
local NEAR, EXCEEDED, DRAINING = 1, 2, 4

local HEAD = '<Bc13dddddI4HBH'
local call, match, byte, sub, format, concat = redis.call, string.match, string.byte, string.sub, string.format, table.concat
local pack, unpacked = struct.pack, struct.unpack

-- Give an account that is kept; nil where there is none, nil and true where there is one that cannot be read: that is never begun anew.
local function read(key)
  local s = call('HGET', key, 's')
  if not s then return nil, call('EXISTS', key) == 1 end
  if #s < HEAD_BYTES or byte(s) ~= FORMAT then return nil, true end
  local a = {key, s, false, false, 0, 0, 0, false, 0, 0, 0, 0, 0, unpacked(HEAD, s)}
  local v, u, h, x, r = a[LIMIT], a[USED], a[HELD], a[DENIED], a[REVISION]
  if v > TOP then v = TOP a[LIMIT] = v end
  if u > TOP then u = TOP a[USED] = u end
  if h > TOP then h = TOP a[HELD] = h end
  -- what is no number is neither more than nothing nor less
  if not (v >= 0 and u >= 0 and h >= 0 and x >= 0 and x <= TOP and r >= 0 and r <= TOP) then return nil, true end
  if v % 1 + u % 1 + h % 1 + x % 1 + r % 1 ~= 0 or #s < HEAD_BYTES + a[EVENTS] then return nil, true end
  return a
end

local function fold(a)
  local u, h, s = a[USED], a[HELD], a[STATE]
  if u < 0 then u = 0 elseif u > TOP then u = TOP end
  if h < 0 then h = 0 elseif h > TOP then h = TOP end
  a[USED], a[HELD] = u, h
  local head = pack(HEAD, FORMAT, a[EPOCH], a[LIMIT], u, h, a[DENIED], a[REVISION], a[LAST], a[WAITING], a[FLAGS], a[EVENTS])
  a[STATE] = #s == HEAD_BYTES and head or head .. sub(s, HEAD_BYTES + 1)
end

local function write(a)
  a[REVISION], a[DIRTY] = a[REVISION] + 1, false
  fold(a)
  call('HSET', a[KEY], 's', a[STATE])
  local rolling = a[ROLLING]
  if rolling then
    local said = {format('%.0f %.0f', rolling.last, rolling.told)}
    for at = 1, #rolling do said[#said + 1] = format('%.0f:%.0f', rolling[at].at, rolling[at].amount) end
    call('HSET', a[KEY], 'b', concat(said, ' '))
  end
end

local function flag(a, which, on)
  if (a[FLAGS] % (2 * which) >= which) ~= on then
    a[FLAGS] = on and a[FLAGS] + which or a[FLAGS] - which
    a[DIRTY] = true
  end
end

-- Learn what the process knows of an account.
local function know(a, facts, warn, today)
  a[FACTS], a[WARN], a[NATURE], a[CARVED] = facts, warn, facts % 8, facts % (2 * CARVES) >= CARVES
  if byte(a[EPOCH]) ~= 114 then return end

  -- Let go of what a rolling window has left behind: the arithmetic of account.py.
  local found = call('HMGET', a[KEY], 'b', 'i')
  local now = tonumber(match(today, '@(.*)$'))
  if not now then
    local time = call('TIME')
    now = tonumber(time[1]) * 1e9 + tonumber(time[2]) * 1e3
  end
  local index, parts = math.floor(now / tonumber(found[2])), {}
  local last, told = match(found[1] or '', '^(%d+) (%d+)')
  last, told = tonumber(last or 0), tonumber(told or 0)
  local back, sum = math.max(0, last - index), 0
  for at, amount in string.gmatch(found[1] or '', '(%d+):(%d+)') do
    parts[#parts + 1] = {at = tonumber(at) - back, amount = tonumber(amount)}
    sum = sum + tonumber(amount)
  end
  last = last > 0 and last - back or index
  if told > 0 then told = math.max(1, told - back) end

  local since = a[USED] - sum  -- charged since the last look, which every step begins with
  if since > 0 then
    if #parts > 0 and parts[#parts].at == last then
      parts[#parts].amount = parts[#parts].amount + since
    else
      parts[#parts + 1] = {at = last, amount = since}
    end
  end
  local rolling = {last = index, told = told}
  for at = 1, #parts do
    local part = parts[at]
    local taken = since < 0 and math.min(part.amount, -since) or 0
    since, part.amount = since + taken, part.amount - taken
    if part.at < index - 60 then
      a[USED] = a[USED] - part.amount
    elseif part.amount > 0 then
      rolling[#rolling + 1] = part
    end
  end
  a[ROLLING], a[DIRTY] = rolling, true
  if a[USED] < math.ceil(a[LIMIT] * a[WARN]) then
    if told > 0 and index - told > 60 then
      rolling.told = 0
      flag(a, NEAR, false)
      flag(a, EXCEEDED, false)
    end
    flag(a, DRAINING, false)
  end
end

local heard, now

-- Give an account as it is now, and what else is said of it; nil when the store has forgotten it, nil and true when it cannot be read.
-- What is said are its epoch ("-": this process has never seen it), its facts, its warning level, and what the script asks; behind a line
-- feed how it begins if nobody has seen it yet. `today` begins with the time in seconds.
local function open(key, said, today)
  local epoch, facts, warn, asks, birth = match(said, '^(%S+) (%d+) (%S+) ?([^\n]*)\n?(.*)$')
  local a, odd = read(key)
  if odd then return nil, true end
  if heard ~= today then heard, now = today, tonumber(match(today, '^%d+')) end
  if birth ~= '' then
    local e, value, used, seconds, width, name = match(birth, '^(%w+) (%d+) (%d+) (%d+) (%d+) (.*)$')
    if not a then
      if epoch ~= '-' then return nil end
      call('HSET', key, 's', pack(HEAD, FORMAT, e, value, used, 0, 0, 1, now, 0, 0, 0), 'd', value, 't', seconds, 'n', name, 'i', width)
      call('EXPIRE', key, seconds)
      a = read(key)
    elseif tonumber(value) < tonumber(call('HGET', key, 'd') or value) then  -- declared again: the smaller value, and it arms nothing
      call('HSET', key, 'd', value)
      a[LIMIT] = math.min(a[LIMIT], tonumber(value))
      a[DIRTY] = true
    end
  end
  if not a or (epoch ~= '-' and epoch ~= a[EPOCH]) then return nil end
  local last = a[LAST]
  if last ~= now then
    if math.floor(last / 3600) ~= math.floor(now / 3600) then call('EXPIRE', key, call('HGET', key, 't') or 604800) end
    a[LAST], a[DIRTY] = now, true
  end
  know(a, facts + 0, warn + 0, today)
  return a, asks
end

local function kept_back(a, wraps_up)
  if wraps_up then return 0 end
  local facts, v = a[FACTS], a[LIMIT]
  if facts % (2 * TENTH) >= TENTH then return math.floor((v + 9) / 10) end
  return (facts % (2 * ONE) >= ONE and v > 1) and 1 or 0
end

-- Note what the account passed just now; `spent` is what a stream that is cut has used of its hold.
local function cross(a, at, crossings, denied, spent)
  local used, v, flags = a[USED] + spent, a[LIMIT], a[FLAGS]
  local near = used >= v * a[WARN] and v > 0 and flags % (2 * NEAR) < NEAR
  local exceeded = (denied or used > v) and flags % (2 * EXCEEDED) < EXCEEDED
  if not near and not exceeded then return end
  local s, said = a[STATE], HEAD_BYTES + a[EVENTS]
  local told, tail, events = sub(s, HEAD_BYTES + 1, said), sub(s, said + 1), (near and 'n' or '') .. (exceeded and 'x' or '')
  told = sub(told .. events, -MOST_EVENTS)
  a[STATE], a[EVENTS], a[DIRTY] = sub(s, 1, HEAD_BYTES) .. told .. tail, #told, true
  a[FLAGS] = flags + (near and NEAR or 0) + (exceeded and EXCEEDED or 0)
  if a[ROLLING] then a[ROLLING].told = a[ROLLING].last end
  for event in string.gmatch(events, '.') do crossings[#crossings + 1] = format('%d%s %.0f %.0f', at, event, used, a[HELD] - spent) end
end

-- Say which account there is not, or cannot be read.
local function missing(at, odd) return (odd and 'U ' or 'L ') .. at end

-- Show an account as an answer does, without what a later version wrote; a zero stands for none.
local function shown(a)
  if not a then return '\0' end
  local s, said = a[STATE], HEAD_BYTES + a[EVENTS]
  return #s > said and sub(s, 1, said) or s
end

-- Write what changed, and say how all of it is now: `head`, then the crossings, then each account's state.
local function answer(head, crossings, accounts)
  local said = {head, ';', concat(crossings, ','), ';', '', '', '', ''}
  for at = 1, #accounts do
    local a = accounts[at]
    if a and a[DIRTY] then write(a) end
    said[at + 4] = shown(a)
  end
  return concat(said)
end

-- An answer that tells of an event is kept for a while: the reply may be lost, and is asked for again.
local function keep(first, name, crossings, said)
  if #crossings > 0 then call('SET', first .. name, said, 'EX', 3600) end
  return said
end
