"""Share accounts among the processes of one machine, through one SQLite file.

`ledger` is the ledger; `store` is the file and `schema` what is in it, `past` brings older ones along; `page` is one transaction, `steps`
what is done in one, `quick` the way of nearly every call; `rows` turn accounts into rows, `owed` is what could not be written; `leases`
tell the living from the dead, `forks` and `descriptors` keep a connection whole, `operators` look at it from outside.
"""
