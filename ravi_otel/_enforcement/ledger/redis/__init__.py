"""Share accounts among machines, through a Redis.

`store` is what happens, step by step, and says which keys there are, under which leases this process holds something, and who waits;
`lua/` is what the server does in each step. `messages` translates between the two, `client` carries it over redis-py to where `url` says.
"""
