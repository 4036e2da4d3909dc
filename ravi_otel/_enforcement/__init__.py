"""Count and refuse.

Where what is:

* scopes: `scope` is one place in the tree, on `scope_limits`, which limits it has; `opening` makes it, `ending` names how it ended;
  `engine` is what all share, `plan` what a call must satisfy there, what it asks, and what is kept for the last one.
* counting: `ledger/` keeps the accounts; `usage_counters` adds up what was used whatever was allowed, `series` counts by window
  and by user.
* refusing: `errors_text` writes the errors.
* time: `clock` reads it, `deadlines` measures scopes by it and looks at their limits when they are due.
* agents: `spawn_tracker` gives out the slots of a run, `shared_slots` shares them among processes; `spawn_limits` holds the other
  limits of agents, and keeps a slot for an agent to come.
* shared budgets: `shares` splits what is left, `tracker` is what an agent has spent.
* going on later: `snapshot` photographs a run.
"""
