"""Write for programs what a run was: the part that its report and `show` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ravi_otel._launch.launcher import NOT_IN_FORCE, STOPPED, UNKEPT
from ravi_otel.local._store import Store
from ravi_otel.policy._limits import NANO

if TYPE_CHECKING:
    from ravi_otel.local._stored_tree import StoredRecord

_OF_OUTCOME: Final = {"stopped": STOPPED, "store_failed": UNKEPT}


def run_facts(store: Store, record: StoredRecord) -> dict[str, Any]:
    """Give what is known of a run; null is not known.

    `exit_status` is the one `ravi-otel run` ended with, `program_status` the program's own, negative for a signal. `directory` is where
    the processes of a launch keep what they share.
    """
    run, launch = record.head, record.launch or {}
    limits, observe = launch.get("limits"), bool(launch.get("observe"))
    unheld = run.outcome in ("unattached", "uncovered") and bool(limits) and not observe
    return {
        "run_id": run.run,
        "name": run.name,
        "argv": launch.get("argv", []),
        "outcome": run.outcome or run.status,
        "exit_status": _OF_OUTCOME.get(run.outcome or "", NOT_IN_FORCE if unheld else run.exit_status),
        "program_status": run.exit_status,
        "started": run.began / NANO,
        "ended": None if run.ended is None else run.ended / NANO,
        "observe": observe,
        "directory": str(store.launches / run.run) if record.launch is not None else None,
        "uncovered": launch.get("uncovered", []),
        "said": launch.get("notes", []),
        "user": run.user,
        "tenant": run.tenant,
        "session": run.session,
        "tags": dict(run.tags),
        "trace_id": run.trace,
    }
