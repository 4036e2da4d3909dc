"""Walk calls, tools and scopes through the layers.

Where what is:

* what a program writes: `scopes` has the factories, `asking` checks their words, `handles` is what they give; `spawning`, `supervising`
  and `resumption` take, keep and regain slots, `waiting` declares waits, `family` draws the tree, `resuming` reads snapshots.
* one model call: `model_call` is its life, from the request to the settlement, `charging` prices it. What only some calls
  need: `capping` for strict limits, `attempts` for retries, `guard` for open streams, `awaited` for answers made in the background,
  `conversations` for their length, `unasked` for connections of many calls, `unseen` for a client that no wrapper sees.
* one tool call: `tool` wraps a function, `tool_call` runs it, `gate_review` asks a gate about it; `parameters` names what it is given,
  `tool_timeout` gives it up after its time; `inferring` remembers what models asked for, `inferred` tells what nobody saw run.
* time and ends: `stopping` ends what is in flight, `late` what was dropped; `patience` and `pausing` are waits.
* being followed: `board` hears, `progress` reads.
* the process: `state` knows the engine and the open runs, `settings` and `options` what was chosen, `surroundings` the launcher;
  `config/` reads limits, `carrying` is for threads, `wrapping` for other people's classes, `footers` the line under an answer that was cut.
"""
