"""Give out the slots of a run, and hold its agents to the limits that count them."""
