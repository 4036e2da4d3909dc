-- Show some of a namespace's counters to an operator, changing nothing.
--
-- KEYS: any key of the server. ARGV: the cursor, a pattern of names. Answers: the next cursor, how many leases live, and for each counter
-- its place, its key in words, its state, and what was declared.

local page, live, found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 500), 0, {}
for _, key in ipairs(page[2]) do
  if string.find(key, '}:a:%x+$') then
    local state = redis.call('HMGET', key, 'n', 's', 'd')
    if state[1] and state[2] then found[#found + 1] = {key, state[1], state[2], state[3] or ''} end
  elseif string.find(key, '}:x$') then
    live = live + redis.call('ZCARD', key)
  end
end
return {page[1], live, found}
