"""Walk calls, tools and scopes through the layers.

Where what is:

* what a program writes: `scopes` has the factories, checks their words, and has the handles that they give; `spawning`
  takes and keeps slots, `waiting` has all that waits, `family` draws the tree.
* one model call: `model_call` is its life, from the request to the settlement. What only some calls need:
  `charging` for retries, caps and streams that outgrow their hold, `background_calls` for answers made in the background and for
  conversations, `unwrapped_calls` for a client that no wrapper sees and for connections of many calls.
* one tool call: `tool_call` wraps a function and runs it; `gate_review` names what it is given, asks a gate about it, and gives it up
  after its time; `inferred_tools` remembers what models asked for, and tells what nobody saw run.
* time and ends: `stopping` ends what is in flight, what was dropped, and what is open when SIGTERM ends the process.
* being followed: `progress`.
* the process: `state` knows the engine, the open runs and what was chosen for it, `settings` reads that and makes the engine; `config`
  puts together what code, flags, environment and the `policy_file` say, `carrying` is for threads, `patching` for other people's
  packages, `footers` the line under an answer that was cut.
"""
