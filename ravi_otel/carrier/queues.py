"""Carry a run to where no request goes: with a task that waits in a queue, and in the environment of a process that is started."""

from __future__ import annotations

from typing import Final

from ravi_otel.carrier.outbound import PROCESS, TASK, carried_to
from ravi_otel.carrier.written import seconds

DAY_S: Final = 86_400.0
MONTH_S: Final = 31 * DAY_S


def task_headers(*, expires_s: float = DAY_S) -> dict[str, str]:
    """Return the headers that carry this run and its trace with a task, such as `task.apply_async(headers=task_headers())` of Celery.

    Whoever works on it goes on with `continue_run(headers)`; in a Celery task those are `self.request.headers`. They are believed for
    `expires_s` seconds, a day unless it is said, and within the run's deadline. Without `RAVI_CARRY_KEYS` they carry the trace alone.
    """
    return carried_to(TASK, seconds("task_headers(expires_s)", expires_s, MONTH_S))


def child_environment(*, expires_s: float = DAY_S) -> dict[str, str]:
    """Return the variables that carry this run and its trace to a process: `Popen(..., env={**os.environ, **child_environment()})`.

    They are `BAGGAGE`, `TRACEPARENT` and `TRACESTATE`. The process goes on with `continue_run(os.environ)`. They are believed for
    `expires_s` seconds, a day unless it is said. Without `RAVI_CARRY_KEYS`, which the process needs too, they carry the trace alone.
    """
    carried = carried_to(PROCESS, seconds("child_environment(expires_s)", expires_s, MONTH_S))
    return {name.upper(): value for name, value in carried.items()}
