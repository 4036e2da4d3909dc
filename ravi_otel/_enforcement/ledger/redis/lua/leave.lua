-- Take somebody out of the line of an account. KEYS: the account. ARGV: the ticket.

local removed = call('ZREM', KEYS[1] .. ':l', ARGV[1])
local a = removed == 1 and read(KEYS[1])
if a then
  a[WAITING] = math.min(call('ZCARD', KEYS[1] .. ':l'), MOST_WAITING)
  write(a)
end
return 'S;'
