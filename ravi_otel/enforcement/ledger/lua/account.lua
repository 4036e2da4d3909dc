-- What every step does with an account; each script begins with this.
--
-- An account is a hash. `s` is what changes: epoch, limit, used, held, denied, flags, revision, how many stand in line, the day of its
-- last use, events told ("n" nearing, "x" exceeded), in this order, apart by one space. `n` is its key in words, `d` the smallest limit
-- that was declared, `t` for how many seconds it is kept after its last use. Amounts are doubles: whole, never negative, 2^53 at most.

local TOP = 9007199254740992
local COUNTED, HELD, AFTER, LEVEL = 0, 1, 2, 3
local OBSERVE, DRAINABLE, SHARED, TENTH, ONE, FREE, CARVED, CLAIMED = 8, 16, 32, 64, 128, 256, 512, 1024
local NEAR, EXCEEDED, DRAINING = 1, 2, 4
local MOST_EVENTS = 1000

local has = bit.band
local function is(number, flag) return has(number, flag) ~= 0 end
local function text(number) return string.format('%.0f', number) end

local function read(key)
  local s = redis.call('HGET', key, 's')
  if not s then return nil end
  local e, v, u, h, x, f, r, w, day, told = string.match(s, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%a*)$')
  if not e then return nil end
  return {key = key, e = e, v = tonumber(v), u = tonumber(u), h = tonumber(h), x = tonumber(x), f = tonumber(f), r = tonumber(r),
    w = tonumber(w), day = day, told = told, s = s}
end

local function write(a)
  a.r = a.r + 1
  a.u = math.max(0, math.min(a.u, TOP))
  a.h = math.max(0, math.min(a.h, TOP))
  a.s = string.format('%s %.0f %.0f %.0f %.0f %d %.0f %d %s %s', a.e, a.v, a.u, a.h, a.x, a.f, a.r, a.w, a.day, a.told)
  a.dirty = false
  redis.call('HSET', a.key, 's', a.s)
end

-- Give an account as it is now; nil when the store has forgotten it. `birth` says how it begins if nobody has seen it yet.
local function open(key, epoch, birth, day)
  local a = read(key)
  if birth ~= '' then
    local e, value, used, seconds, name = string.match(birth, '^(%x+) (%d+) (%d+) (%d+) (.*)$')
    if not a then
      if epoch ~= '' then return nil end
      redis.call('DEL', key)
      redis.call('HSET', key, 's', e .. ' ' .. value .. ' ' .. used .. ' 0 0 0 1 0 ' .. day .. ' ', 'd', value, 't', seconds, 'n', name)
      redis.call('EXPIRE', key, seconds)
      a = read(key)
    elseif tonumber(value) < tonumber(redis.call('HGET', key, 'd') or value) then  -- declared again: the smaller value, and it arms nothing
      redis.call('HSET', key, 'd', value)
      a.v = math.min(a.v, tonumber(value))
      a.dirty = true
    end
  end
  if not a or (epoch ~= '' and epoch ~= a.e) then return nil end
  if a.day ~= day then
    a.day = day
    a.dirty = true
    redis.call('EXPIRE', key, redis.call('HGET', key, 't') or 604800)
  end
  return a
end

local function kept_back(a, wraps_up)
  if wraps_up then return 0 end
  if is(a.facts, TENTH) then return math.floor((a.v + 9) / 10) end
  return (is(a.facts, ONE) and a.v > 1) and 1 or 0
end

local function warn_value(a) return math.ceil(a.v * a.warn) end

local function flag(a, which, on)
  if is(a.f, which) ~= on then
    a.f = on and a.f + which or a.f - which
    a.dirty = true
  end
end

-- Note what the account passed just now; `spent` is what a stream that is cut has used of its hold.
local function cross(a, at, crossings, denied, spent)
  local used, held = a.u + spent, a.h - spent
  local function note(event)
    a.told = string.sub(a.told .. event, -MOST_EVENTS)
    a.dirty = true
    crossings[#crossings + 1] = string.format('%d%s %.0f %.0f', at, event, used, held)
  end
  if not is(a.f, NEAR) and a.v > 0 and used >= warn_value(a) then
    flag(a, NEAR, true)
    note('n')
  end
  if not is(a.f, EXCEEDED) and (denied or used > a.v) then
    flag(a, EXCEEDED, true)
    note('x')
  end
end

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
  if #crossings > 0 then redis.call('SET', key, said, 'EX', 3600) end
  return said
end
