-- What every step does with an account; each script begins with this.
--
-- An account is a hash. `s` is what changes: epoch, limit, used, held, denied, flags, revision, how many stand in line, when it was last
-- used (seconds since 1970), events told ("n" nearing, "x" exceeded), in this order, apart by one space; what a later version writes
-- behind them, apart by a space too and without a ";", is kept as it is. `n` is its key in words, `d` the
-- smallest limit that was declared, `t` for how many seconds it is kept after its last use. Amounts are doubles: whole, never negative,
-- 2^53 at most.
-- The epoch of an account whose window rolls begins with "r": its `i` is how many ns a part of the window lasts, its `b` what rolling.py
-- writes of it.

local TOP = 9007199254740992
local COUNTED, HELD, AFTER, LEVEL = 0, 1, 2, 3
local OBSERVE, DRAINABLE, SHARED, TENTH, ONE, FREE, CARVED, CLAIMED = 8, 16, 32, 64, 128, 256, 512, 1024
local NEAR, EXCEEDED, DRAINING = 1, 2, 4
local MOST_EVENTS = 1000

local has, call = bit.band, redis.call
local function is(number, flag) return has(number, flag) ~= 0 end
local match, format = string.match, string.format

-- Whole numbers are written in half the time by %d, where a long has 64 bits.
local WIDE = format('%d', TOP) == '9007199254740992'
local STATE = WIDE and '%s %d %d %d %s %d %d %s %s %s%s' or '%s %.0f %.0f %.0f %s %d %.0f %s %s %s%s'
local PART = WIDE and '%s %d %d;' or '%s %.0f %.0f;'
local WHOLE = WIDE and '%d' or '%.0f'
local function text(number) return format(WHOLE, number) end

-- Give an account that is kept; nil where there is none, nil and true where there is one that cannot be read: that is never begun anew.
-- Of what seldom matters it gives the words: x and w.
local function read(key)
  local s = call('HGET', key, 's')
  if not s then return nil, call('EXISTS', key) == 1 end
  local e, v, u, h, x, f, r, w, last, told, tail =
    match(s, '^(%w+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a*)([^;]*)$')
  if not e or #x > 14 or #f > 2 or #r > 14 or (tail ~= '' and string.byte(tail) ~= 32) then return nil, true end
  v, u, h = tonumber(v), tonumber(u), tonumber(h)
  if v > TOP then v = TOP end
  if u > TOP then u = TOP end
  if h > TOP then h = TOP end
  return {key = key, e = e, v = v, u = u, h = h, x = x, f = tonumber(f), r = tonumber(r),
    w = w, last = last, told = told, tail = tail, s = s, dirty = false,
    -- what the scripts note of it: a table that has room for that from the start never grows
    today = false, rolling = false, facts = 0, warn = 0, nature = 0, carved = false, want = 0, minimum = 0, others = 0, mine = 0}
end

local function fold(a)
  local u, h = a.u, a.h
  if u < 0 then a.u = 0 elseif u > TOP then a.u = TOP end
  if h < 0 then a.h = 0 elseif h > TOP then a.h = TOP end
  a.s = format(STATE, a.e, a.v, a.u, a.h, a.x, a.f, a.r, a.w, a.last, a.told, a.tail)
  return a.s
end

local function write(a)
  a.r = a.r + 1
  a.dirty = false
  call('HSET', a.key, 's', fold(a))
  if a.rolling then
    local said = {text(a.rolling.last), text(a.rolling.told)}
    for at = 1, #a.rolling do said[#said + 1] = string.format('%.0f:%.0f', a.rolling[at].at, a.rolling[at].amount) end
    call('HSET', a.key, 'b', table.concat(said, ' '))
  end
end

-- Give an account as it is now; nil when the store has forgotten it, nil and true when it cannot be read. `birth` says how it begins if
-- nobody has seen it yet.
local function open(key, epoch, birth, today)
  local last, a, odd = match(today, '^%d+'), read(key)
  if odd then return nil, true end
  if birth ~= '' then
    local e, value, used, seconds, width, name = string.match(birth, '^(%w+) (%d+) (%d+) (%d+) (%d+) (.*)$')
    if not a then
      if epoch ~= '' then return nil end
      call('HSET', key, 's', e .. ' ' .. value .. ' ' .. used .. ' 0 0 0 1 0 ' .. last .. ' ', 'd', value, 't', seconds, 'n', name, 'i', width)
      call('EXPIRE', key, seconds)
      a = read(key)
    elseif tonumber(value) < tonumber(call('HGET', key, 'd') or value) then  -- declared again: the smaller value, and it arms nothing
      call('HSET', key, 'd', value)
      a.v = math.min(a.v, tonumber(value))
      a.dirty = true
    end
  end
  if not a or (epoch ~= '' and epoch ~= a.e) then return nil end
  if a.last ~= last then
    if math.floor(a.last / 86400) ~= math.floor(last / 86400) then call('EXPIRE', key, call('HGET', key, 't') or 604800) end
    a.last = last
    a.dirty = true
  end
  a.today = today
  return a
end

local function warn_value(a) return math.ceil(a.v * a.warn) end

local function flag(a, which, on)
  if is(a.f, which) ~= on then
    a.f = on and a.f + which or a.f - which
    a.dirty = true
  end
end

-- Let go of what a rolling window has left behind: the arithmetic of rolling.py.
local function roll(a)
  local found = call('HMGET', a.key, 'b', 'i')
  local now = tonumber(string.match(a.today, '@(.*)$'))
  if not now then
    local time = call('TIME')
    now = tonumber(time[1]) * 1e9 + tonumber(time[2]) * 1e3
  end
  local index, parts = math.floor(now / tonumber(found[2])), {}
  local last, told = string.match(found[1] or '', '^(%d+) (%d+)')
  last, told = tonumber(last or 0), tonumber(told or 0)
  local back, sum = math.max(0, last - index), 0
  for at, amount in string.gmatch(found[1] or '', '(%d+):(%d+)') do
    parts[#parts + 1] = {at = tonumber(at) - back, amount = tonumber(amount)}
    sum = sum + tonumber(amount)
  end
  last = last > 0 and last - back or index
  if told > 0 then told = math.max(1, told - back) end

  local since = a.u - sum  -- charged since the last look, which every step begins with
  if since > 0 then
    if #parts > 0 and parts[#parts].at == last then
      parts[#parts].amount = parts[#parts].amount + since
    else
      parts[#parts + 1] = {at = last, amount = since}
    end
  end
  a.rolling = {last = index, told = told}
  for at = 1, #parts do
    local part = parts[at]
    local taken = since < 0 and math.min(part.amount, -since) or 0
    since, part.amount = since + taken, part.amount - taken
    if part.at < index - 60 then
      a.u = a.u - part.amount
    elseif part.amount > 0 then
      a.rolling[#a.rolling + 1] = part
    end
  end
  a.dirty = true
  if a.u < warn_value(a) then
    local again = told > 0 and index - told > 60
    if again then
      a.rolling.told = 0
      flag(a, NEAR, false)
      flag(a, EXCEEDED, false)
    end
    flag(a, DRAINING, false)
  end
end

-- Learn what the process knows of an account.
local function know(a, facts, warn)
  a.facts, a.warn = tonumber(facts), tonumber(warn)
  a.nature, a.carved = a.facts % 8, is(a.facts, CARVED)
  if string.byte(a.e) == 114 then roll(a) end  -- an r
end

local function kept_back(a, wraps_up)
  if wraps_up then return 0 end
  if is(a.facts, TENTH) then return math.floor((a.v + 9) / 10) end
  return (is(a.facts, ONE) and a.v > 1) and 1 or 0
end

local function note(a, at, crossings, which, event, spent)
  flag(a, which, true)
  a.told = string.sub(a.told .. event, -MOST_EVENTS)
  a.dirty = true
  if a.rolling then a.rolling.told = a.rolling.last end
  crossings[#crossings + 1] = format('%d%s %.0f %.0f', at, event, a.u + spent, a.h - spent)
end

-- Note what the account passed just now; `spent` is what a stream that is cut has used of its hold.
local function cross(a, at, crossings, denied, spent)
  local used = a.u + spent
  if used >= a.v * a.warn and a.v > 0 and not is(a.f, NEAR) then note(a, at, crossings, NEAR, 'n', spent) end
  if (denied or used > a.v) and not is(a.f, EXCEEDED) then note(a, at, crossings, EXCEEDED, 'x', spent) end
end

-- Say which account there is not, or cannot be read.
local function missing(at, odd) return (odd and 'U ' or 'L ') .. at end

-- Write what changed, and say how all of it is now: `head`, then the crossings, then each account's state.
local function answer(head, crossings, accounts)
  local said = {head, table.concat(crossings, ',')}
  for at = 1, #accounts do
    local a = accounts[at]
    if a.dirty then write(a) end
    said[#said + 1] = a.s
  end
  return table.concat(said, ';')
end

-- An answer that tells of an event is kept for a while: the reply may be lost, and is asked for again.
local function keep(key, crossings, said)
  if #crossings > 0 then call('SET', key, said, 'EX', 3600) end
  return said
end
