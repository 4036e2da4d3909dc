"""Share accounts among the processes of one machine, through one SQLite file.

`ledger` is the ledger and its store, and what could not be written; `transaction` is one step, with the rows that it reads and writes;
`process` tells the living from the dead, and what is over; `file` is the connection, the tables, and how long to wait for others.
"""
