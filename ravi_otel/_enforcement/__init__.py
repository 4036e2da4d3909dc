"""Count and refuse.

Where what is:

* scopes: `scope` is one place in the tree, on `scope_limits`, which limits it has; `opening` makes it, `ending` names how it ended;
  `engine` is what all share, `plan` what a call must satisfy there, and what it asks.
* counting: `ledger/` keeps the accounts; `usage_counters` adds up what was used whatever was allowed, `series` counts by window
  and by user, `last_call` keeps a rest for the end.
* refusing: `errors_text` writes the errors.
* time: `clock` reads it, `deadlines` measures scopes by it and looks at their limits when they are due.
* agents: `spawn/` gives out the slots of a run: its `tracker` is what users call, and keeps slots for agents to come, `slots` decides
  who has one and who is next, `limits` holds the other limits of agents, `shared` the slots that several processes give out.
* shared budgets: `shares` splits what is left, `tracker` is what an agent has spent.
* going on later: `snapshot` photographs a run.
"""
