"""Share accounts among machines, through a Redis.

`store` is what happens, step by step, and says which keys there are; `lua/` is what the server does in each step. `messages` translates
between the two, `process` notes what one process has there: leases, pending writes, those who wait. `client` carries it over redis-py to
where `url` says.
"""
