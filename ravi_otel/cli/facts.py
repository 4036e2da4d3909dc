"""Write for programs what a run was: the part that its report and `show` have in common."""

from __future__ import annotations

import math
from typing import Any, Final

from ravi_otel.launch.launcher import NOT_IN_FORCE, STOPPED, UNKEPT
from ravi_otel.local.store import StoredRun
from ravi_otel.local.store.pruning import is_running

_OF_OUTCOME: Final = {"limited": STOPPED, "store_failed": UNKEPT}


def outcome_of(run: StoredRun) -> str:
    """Say how a run ended: "lost" where it says that it runs, and nobody saw it end."""
    outcome = run.manifest.outcome
    return "lost" if outcome == "running" and not is_running(run) else outcome


def run_facts(run: StoredRun) -> dict[str, Any]:
    """Give what the manifest knows; null is not known.

    `exit_status` is the one `ravi-otel run` ended with, `program_status` the program's own, negative for a signal.
    """
    known = run.manifest
    unheld = known.outcome in ("unattached", "uncovered") and bool(known.limits) and not known.observe
    status = known.status if isinstance(known.status, int) else None
    return {
        "run_id": known.run_id,
        "name": known.name,
        "argv": list(known.argv),
        "outcome": outcome_of(run),
        "exit_status": _OF_OUTCOME.get(known.outcome, NOT_IN_FORCE if unheld else status),
        "program_status": status,
        "started": _finite(known.started),
        "ended": _finite(known.ended),
        "observe": known.observe,
        "directory": str(run.path),
        "uncovered": list(known.uncovered),
        "said": list(known.notes),
    }


def _finite(seconds: float | None) -> float | None:
    return seconds if isinstance(seconds, int) or (seconds is not None and math.isfinite(seconds)) else None
