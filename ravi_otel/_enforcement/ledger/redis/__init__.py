"""Share accounts among machines, through a Redis.

`ledger` is the ledger: `reserving`, `ending` and `counting` are its steps, `asking`, `answers` and `scripts` what goes to a script of
`lua/` and comes back, `places` the names of keys; `line` waits for what others hold, `leases` keep this process alive in there, `owed`
is what could not be written. `link` carries it all: `url` reads where to, `wire` is one connection, `pool` all of a process.
`operators` look at it from outside.
"""
