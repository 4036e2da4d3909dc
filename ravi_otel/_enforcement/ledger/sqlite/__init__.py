"""Share accounts among the processes of one machine, through one SQLite file.

`ledger` is the ledger and its store; `transaction` is one step, with the rows that it reads and writes, and tells the living from the dead;
`file` is the connection, the tables, and how long to wait for others.
"""
