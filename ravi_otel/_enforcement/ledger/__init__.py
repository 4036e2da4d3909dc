"""Keep the accounts of every scope: what is held, used and refused, wherever it is kept.

* what all agree on: `contract` is the protocol, `account` one counter, `judge` decides, `windows` lets go of what a rolling window
  has left behind, `wait_queue` answers those who wait, `operators` is what may be seen and changed from outside.
* where it is kept: `memory` for this process alone; `store_ledger` counts in a store that processes share, `sqlite/` or `redis/`, and in
  memory what is this process's own, does what each limit wants when the store fails, and asks anew for whoever reads limits.
  `choosing` opens what a URL names, and says which store that is.
* when a store fails, or has forgotten: `store_failures`.
"""
