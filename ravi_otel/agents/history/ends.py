"""Forget what was kept for the time of a run when that run ends, whoever opened it."""

from __future__ import annotations

from ravi_otel._enforcement.scope import Scope
from ravi_otel._runtime.scopes import current_scope
from ravi_otel.agents.history.contract import ForgetsAtOnce
from ravi_otel.hooks._events import ScopeView, Totals
from ravi_otel.hooks._listeners import Listener, swallow


def run_of(scope: Scope) -> str | None:
    """Give the id of the run a scope is in; an agent outside any run is one by itself."""
    node = scope.supervision
    return scope.facts.run_id if node is None else node.run_id


class _Ends(Listener):
    """Hear of the end of each scope that something is kept for. No step takes a lock: each is one of a dict, which Python makes atomic."""

    def __init__(self) -> None:
        self._stores: dict[str, dict[int, ForgetsAtOnce]] = {}

    def note(self, scope: Scope, store: ForgetsAtOnce) -> None:
        """Have `store` forget when `scope` closes."""
        scope.engine.listeners.add_once(self)
        self._stores.setdefault(scope.facts.scope_id, {})[id(store)] = store

    def scope_closed(self, scope: ScopeView, totals: Totals) -> None:  # noqa: ARG002 - the listener's signature
        """Tell the stores of what ended; a run that is paused may be resumed, and is not over."""
        stores = self._stores.pop(scope.facts.scope_id, None) if self._stores else None
        node = scope.facts.supervision
        if stores is None or node is None or scope.status == "paused":
            return
        for store in stores.values():
            try:
                store.run_ended(node.run_id, scope.facts.tenant_id)
            except Exception as error:  # noqa: BLE001 - the end of a run is the program's, whatever becomes of a file
                swallow("history.run_ended", error)


_ENDS = _Ends()


def forget_at_the_end(store: object) -> bool:
    """Have a store forget the run around when it ends; False when it has ended already.

    What a whole launched process runs in ends with its processes: the store finds that out itself.
    """
    scope = current_scope()
    run_id = run_of(scope)
    around = [one for one in scope.upwards() if one.supervision is not None and one.supervision.run_id == run_id]
    if not around:
        return False
    outermost = around[-1]
    if outermost.clock.ended_ns is not None:
        return False
    if isinstance(store, ForgetsAtOnce) and not outermost.facts.surrounding:
        _ENDS.note(outermost, store)
    return True
