"""Read what a run is to go on from, and refuse what cannot be."""

from __future__ import annotations

from ravi_otel import _current
from ravi_otel._enforcement.opening import still_open
from ravi_otel._enforcement.scope import Scope
from ravi_otel._enforcement.snapshot import Snapshot
from ravi_otel._runtime.state import STATE
from ravi_otel.errors import ConfigurationError
from ravi_otel.policy import checks
from ravi_otel.policy.limits import ScopeKind


def read_resume(given: object, *, run_id: str | None, session_id: str | None, tenant_id: str | None) -> Snapshot | None:
    """Read `run(resume=)`, a Snapshot or its JSON; whose session and tenant it is, the host says itself.

    Raises ConfigurationError for what is no snapshot, or another run's, session's or tenant's.
    """
    if given is None:
        return None
    snapshot = given if isinstance(given, Snapshot) else _from_json(given)
    if run_id not in (None, snapshot.run_id):
        raise ConfigurationError(
            f"run(run_id={checks.show(run_id)}, resume=...) names another run than the snapshot's, {checks.show(snapshot.run_id)}: "
            "leave out run_id."
        )
    for name, ours, theirs in (("session_id", session_id, snapshot.session_id), ("tenant_id", tenant_id, snapshot.tenant_id)):
        if theirs is not None and ours != theirs:
            raise ConfigurationError(
                f"run({name}={checks.show(ours)}, resume=...) is not where the snapshot was taken: give {name}={checks.show(theirs)}, "
                "since a snapshot chooses no limits."
            )
    return snapshot


def _from_json(given: object) -> Snapshot:
    if not isinstance(given, (str, bytes)):
        raise ConfigurationError(f"run(resume={checks.show(given)}) must be a Snapshot, or the text of its to_json().")
    return Snapshot.from_json(given)


def refuse_twice(snapshot: Snapshot) -> None:
    """Raise ConfigurationError when the run that the snapshot was taken of is still open here."""
    known = STATE.open_runs()
    leaf = _current.entered()
    if isinstance(leaf, Scope):
        known += leaf.upwards()
    for scope in known:
        if scope.facts.kind is ScopeKind.RUN and scope.facts.run_id == snapshot.run_id and scope.status == "open":
            raise still_open(snapshot.run_id)
