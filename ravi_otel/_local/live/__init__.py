"""Watch the running processes of a store, and steer them: a socket in each, for its owner only.

In the program `OpenScopes` hears what happens, and `Server` writes it to who follows and does what they command. Elsewhere, in
`ravi-otel top` or the page, `Watch` follows every process of the store, and a `Session` gives one of them commands.
"""
