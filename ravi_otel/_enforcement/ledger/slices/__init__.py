"""Count hot limits in local slices of a shared ledger.

`ledger` stands before any other ledger, `slice` is what a process has taken of one account, `supply` takes more and gives back.
"""
