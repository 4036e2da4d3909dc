"""Share accounts among machines, through a Redis.

`store` is the store, `process` what one process has there: leases, pending writes, those who wait. `messages` is what the scripts of `lua/`
are told and answer. `client` carries it over redis-py to where `url` says.
"""
