"""Instrument itself, as a program does that nobody launches."""

from asks import ask

import ravi_otel

ravi_otel.instrument(prices={"m-small": {"input": 1.0, "output": 4.0}})
with ravi_otel.run("served", user_id="u7", tags={"team": "support"}), ravi_otel.agent("clerk"):
    ask("used 70 7")
