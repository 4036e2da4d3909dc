"""Do six jobs with the same agent, each in a run of its own, and fail at the end."""

import sys

from asks import ask

import ravi_otel

for number in range(6):
    with ravi_otel.run("job", session_id=f"s-{number % 2}", tags={"team": "batch"}), ravi_otel.agent("worker"):
        for _ in range(number + 1):
            ask("used 1000 100")
sys.exit(3)
