-- Show an account, changing nothing. KEYS: the account. Answers: its state, or nothing.

return redis.call('HGET', KEYS[1], 's')
