"""Wait in an agent for an answer that is held back."""

from asks import ask

import ravi_otel

nightly = ravi_otel.run("nightly", user_id="u42", limits=["tokens=1000", "requests=5"])
with nightly, ravi_otel.agent("researcher", budget=ravi_otel.ExecutionBudget(max_turns=20)):
    ask("used 300 30")
    with ravi_otel.agent("critic"):
        ask("held")
