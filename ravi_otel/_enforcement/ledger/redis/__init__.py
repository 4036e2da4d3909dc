"""Share accounts among machines, through a Redis.

`ledger` is the ledger, whose steps are in `reserving` and `ending`; `process` is what one process has there: leases, debts, waiters;
`messages` is what the scripts of `lua/` are told and answer; `client` carries it over redis-py to where `url` says. `operators` look at
it from outside.
"""
